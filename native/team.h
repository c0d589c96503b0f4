// Threads that share the pieces of a task.

#pragma once

#include <functional>

namespace anode {

/// Calls piece(0), ..., piece(count - 1), on up to `threads` threads. Which thread takes which piece is left open, so
/// that results must not depend on it. If another caller is using the threads, all pieces run here.
void share(int count, int threads, const std::function<void(int)>& piece);

}  // namespace anode

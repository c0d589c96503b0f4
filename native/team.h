// Threads that share the pieces of a task.

#pragma once

#include <functional>

namespace anode {

/// Calls piece(0), ..., piece(count - 1), on up to `threads` threads. Which thread takes which piece is left open, so
/// that results must not depend on it. If another caller is using the threads, all pieces run here.
void share(int count, int threads, const std::function<void(int)>& piece);

/// OpenMP's way to call work(data) on several threads, as libgomp has it and others offer it.
using Parallel = void (*)(void (*work)(void*), void* data, unsigned threads, unsigned flags);

/// From now on `share` borrows the threads of another library. Its own would compete with them: those of OpenMP spin
/// for milliseconds after each task, which made a training iteration on images take 5.3 s instead of 4.4 s.
void borrow_threads(Parallel);

}  // namespace anode

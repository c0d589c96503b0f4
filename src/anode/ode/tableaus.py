"""Explicit Runge-Kutta methods as data: one entry a method.

A step from ``(t, y)`` to ``t + h`` evaluates the slopes

    k_i = f(t + c_i h,  y + h sum_j a_ij k_j),        i = 0 .. s-1,

moves to ``y1 = y + h sum_i b_i k_i`` and, where the method carries an estimate of its own error, reports
``h sum_i e_i k_i``. One more slope, the *end slope* ``f(t + h, y1)``, belongs to every method here: a method
that is FSAL ("first same as last") evaluates it anyway, the others only when something asks for it. Between
the ends of a step the solution is the polynomial

    y(t + x h) = y + h sum_i p_i(x) k_i,              0 <= x <= 1,

with the end slope as its last ``k``.

References:
    Hairer, Norsett and Wanner, *Solving Ordinary Differential Equations I*, 2nd edition, 1993 (sections II.1-II.6).
    Each method below names its own source.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

from anode.checks import lookup, require
from anode.ode.order import OrderConditions, order_conditions

Weights = tuple[tuple[int, float], ...]
"""The non-zero weights of a sum of slopes, as (index of the slope, weight) pairs."""


class Row(NamedTuple):
    """A sum of slopes, ``scale * (k_first + sum of weight * k)``: so written, it takes one operation less.

    The first has the largest weight, so that the others are at most 1 and sums of large slopes do not overflow.
    """

    scale: float
    first: int
    rest: Weights


Polynomial = tuple[float, ...]
"""Coefficients of x, x^2, x^3, ...; the constant is always zero."""


@dataclass(frozen=True)
class Tableau:
    """One explicit Runge-Kutta method, checked when it is made. The compiled engine takes any of them.

    Attributes:
        name: What users call it.
        order: Order of convergence; also the exponent of the step-size controller.
        c: Where in the step each slope is evaluated.
        a: Row i holds the i weights of the earlier slopes.
        b: Weights of the step.
        error: Weights of the error estimate, over the slopes and, for an FSAL method, the end slope; ``None`` if
            the method has no estimate and takes steps of a given size.
        polynomials: p_i(x) of the dense output, one for each slope and one for the end slope.
        dense_order: Order of the dense output.
        fsal: Whether the error estimate needs the end slope, so that every step evaluates it.
        last_stage_ends: Whether the next step begins with the last slope of this one, although that was not evaluated
            at the end of the step; as in torchdiffeq, see :meth:`reusing_last_stage`.
    """

    name: str
    order: int
    c: tuple[float, ...]
    a: tuple[tuple[float, ...], ...]
    b: tuple[float, ...]
    error: tuple[float, ...] | None = None
    polynomials: tuple[Polynomial, ...] = field(default=())
    dense_order: int = 0
    fsal: bool = False
    last_stage_ends: bool = False

    def __post_init__(self) -> None:
        self._check()
        if not self.polynomials:
            object.__setattr__(self, "polynomials", _hermite(self.b))
            object.__setattr__(self, "dense_order", min(self.order, 3))

    def _check(self) -> None:
        """Raise ``ValueError`` if the coefficients do not fit together; turn lists into tuples."""
        for name in ("c", "b", "error"):
            values = getattr(self, name)
            object.__setattr__(self, name, None if values is None else tuple(map(float, values)))
        for name in ("a", "polynomials"):
            object.__setattr__(self, name, tuple(tuple(map(float, row)) for row in getattr(self, name)))
        slopes = len(self.b)
        require(slopes > 0, "b", self.b, "at least one weight")
        require(len(self.c) == slopes, "c", self.c, f"as many values as b, {slopes}")
        rows = [len(row) for row in self.a]
        require(rows == list(range(slopes)), "a", f"rows of {rows}", f"rows of {list(range(slopes))} weights")
        for c, row in zip(self.c, self.a, strict=True):
            require(abs(sum(row) - c) < 1e-8, "a", row, f"weights that add up to c = {c}")
        require(abs(sum(self.b) - 1) < 1e-8, "b", self.b, "weights that add up to 1")
        if self.error is not None:
            wanted = slopes + self.fsal
            takes = f"{wanted} weights{', the last for the end slope' if self.fsal else ''}"
            require(len(self.error) == wanted, "error", self.error, takes)
            require(abs(sum(self.error)) < 1e-8, "error", self.error, "weights that add up to 0")
        fits = len(self.polynomials) in (0, slopes + 1)
        require(fits, "polynomials", len(self.polynomials), f"{slopes + 1}, one per slope and one for the end slope")

    def order_conditions(self, up_to: int = 8) -> OrderConditions:
        """Check which order the method really has.

        Example:
            >>> import anode
            >>> heun = anode.Tableau("mine", 2, c=(0, 1), a=((), (1,)), b=(0.5, 0.5))
            >>> heun.order_conditions().order
            2
        """
        return order_conditions(self.a, self.b, up_to)

    @property
    def adaptive(self) -> bool:
        """Whether the method can choose its own step size."""
        return self.error is not None

    @cached_property
    def stages(self) -> tuple[tuple[float, Row], ...]:
        """``(c_i, row i of a)`` for every slope but the first, then for the end slope, whose row is b."""
        return tuple((c, _row(row)) for c, row in zip((*self.c[1:], 1.0), (*self.a[1:], self.b), strict=True))

    @cached_property
    def weights(self) -> Weights:
        """The step's weights b."""
        return _sparse(self.b)

    @cached_property
    def weights_by_slope(self) -> dict[int, float]:
        """The same as a dictionary."""
        return dict(self.weights)

    @cached_property
    def error_row(self) -> Row:
        """The error estimate's weights."""
        return _row(self.error or ())

    @cached_property
    def feeds(self) -> tuple[Weights, ...]:
        """For each slope, and the end slope, the later ones it enters: (index, weight) pairs."""
        rows = (*self.a, self.b)
        return tuple(_sparse([row[i] if i < len(row) else 0.0 for row in rows]) for i in range(len(rows)))

    @cached_property
    def dense_needs_end_slope(self) -> bool:
        """Whether the dense output uses the end slope."""
        return any(self.polynomials[-1])

    @cached_property
    def stability(self) -> float:
        """How far the stability region reaches along the negative real axis, to two decimals."""
        slopes, coefficients = [1.0] * len(self.b), [1.0]
        for _ in self.b:
            coefficients.append(sum(b * k for b, k in zip(self.b, slopes, strict=True)))
            slopes = [sum(a * k for a, k in zip(row, slopes, strict=False)) for row in self.a]
        x = 0.01
        while abs(sum(c * (-x) ** n for n, c in enumerate(coefficients))) <= 1:
            x += 0.01
        return x

    @cached_property
    def linear(self) -> Tableau:
        """The same method with straight lines between the ends of its steps."""
        lines = tuple((b,) for b in self.b)
        return replace(self, polynomials=(*lines, (0.0,)), dense_order=1)

    def reusing_last_stage(self, middle: Sequence[float]) -> Tableau:
        """Return the method as torchdiffeq runs it, with the last stage in place of the end slope.

        This saves one evaluation per step and costs accuracy.

        Args:
            middle: Weights of the slopes in the state half way.
        """
        *rows, before, end = _quartic(self.b, (*middle, 0.0))
        last = tuple(x + y for x, y in zip(before, end, strict=True))
        return replace(self, polynomials=(*rows, last, (0.0,)), dense_order=1, last_stage_ends=True)


def _sparse(weights: Sequence[float]) -> Weights:
    return tuple((i, w) for i, w in enumerate(weights) if w != 0)


def _row(weights: Sequence[float]) -> Row:
    first = max(range(len(weights)), key=lambda i: abs(weights[i]))
    scale = weights[first]
    return Row(scale, first, tuple((i, w / scale) for i, w in _sparse(weights) if i != first))


def _hermite(b: tuple[float, ...]) -> tuple[Polynomial, ...]:
    """The cubic through both ends of a step with the right slopes there."""
    rows = [[0.0, 3 * w, -2 * w] for w in b] + [[0.0, -1.0, 1.0]]
    for power, value in enumerate((1.0, -2.0, 1.0)):
        rows[0][power] += value
    return tuple(tuple(row) for row in rows)


def _quartic(b: tuple[float, ...], middle: tuple[float, ...]) -> tuple[Polynomial, ...]:
    """The quartic through both ends with the right slopes there and ``y + h sum_i middle_i k_i`` half way."""
    rows = [[0.0, 16 * m - 5 * w, 14 * w - 32 * m, 16 * m - 8 * w] for w, m in zip((*b, 0.0), middle, strict=True)]
    for power, (first, last) in enumerate(((1.0, 0.0), (-4.0, 1.0), (5.0, -3.0), (-2.0, 2.0))):
        rows[0][power] += first
        rows[-1][power] += last
    return tuple(tuple(row) for row in rows)


def _minus(b: Sequence[float], b_hat: Sequence[float]) -> tuple[float, ...]:
    return tuple(x - y for x, y in zip(b, b_hat, strict=True))


# ---------------------------------------------------------------------------------------- methods of a given step size

EULER = Tableau("euler", order=1, c=(0.0,), a=((),), b=(1.0,))

# Runge (1895).
MIDPOINT = Tableau("midpoint", order=2, c=(0.0, 1 / 2), a=((), (1 / 2,)), b=(0.0, 1.0))

# Heun (1900), of orders 2 and 3.
HEUN2 = Tableau("heun2", order=2, c=(0.0, 1.0), a=((), (1.0,)), b=(1 / 2, 1 / 2))
HEUN3 = Tableau("heun3", order=3, c=(0.0, 1 / 3, 2 / 3), a=((), (1 / 3,), (0.0, 2 / 3)), b=(1 / 4, 0.0, 3 / 4))

# Kutta (1901): the "3/8 rule", which is what torchdiffeq calls rk4, and the classical method.
RK4 = Tableau(
    "rk4",
    order=4,
    c=(0.0, 1 / 3, 2 / 3, 1.0),
    a=((), (1 / 3,), (-1 / 3, 1.0), (1.0, -1.0, 1.0)),
    b=(1 / 8, 3 / 8, 3 / 8, 1 / 8),
)
RK4_CLASSIC = Tableau(
    "rk4_classic",
    order=4,
    c=(0.0, 1 / 2, 1 / 2, 1.0),
    a=((), (1 / 2,), (0.0, 1 / 2), (0.0, 0.0, 1.0)),
    b=(1 / 6, 1 / 3, 1 / 3, 1 / 6),
)

# ------------------------------------------------------------------------------------------------- adaptive methods

# Heun's method with Euler's as the comparison.
ADAPTIVE_HEUN = Tableau("adaptive_heun", order=2, c=(0.0, 1.0), a=((), (1.0,)), b=(1 / 2, 1 / 2), error=(1 / 2, -1 / 2))

# Fehlberg, NASA TR R-315 (1969): RK1(2), advanced with the second-order weights.
FEHLBERG2 = Tableau(
    "fehlberg2",
    order=2,
    c=(0.0, 1 / 2, 1.0),
    a=((), (1 / 2,), (1 / 256, 255 / 256)),
    b=(1 / 512, 255 / 256, 1 / 512),
    error=(-1 / 512, 0.0, 1 / 512),
)

# Bogacki and Shampine, Appl. Math. Lett. 2 (1989) 321-325.
_BOSH3_B = (2 / 9, 1 / 3, 4 / 9)
BOSH3 = Tableau(
    "bosh3",
    order=3,
    c=(0.0, 1 / 2, 3 / 4),
    a=((), (1 / 2,), (0.0, 3 / 4)),
    b=_BOSH3_B,
    error=_minus((*_BOSH3_B, 0.0), (7 / 24, 1 / 4, 1 / 3, 1 / 8)),
    fsal=True,
)

# Dormand and Prince, J. Comput. Appl. Math. 6 (1980) 19-26; the value half way from Shampine, Math. Comp. 46 (1986).
_DOPRI5_B = (35 / 384, 0.0, 500 / 1113, 125 / 192, -2187 / 6784, 11 / 84)
DOPRI5 = Tableau(
    "dopri5",
    order=5,
    c=(0.0, 1 / 5, 3 / 10, 4 / 5, 8 / 9, 1.0),
    a=(
        (),
        (1 / 5,),
        (3 / 40, 9 / 40),
        (44 / 45, -56 / 15, 32 / 9),
        (19372 / 6561, -25360 / 2187, 64448 / 6561, -212 / 729),
        (9017 / 3168, -355 / 33, 46732 / 5247, 49 / 176, -5103 / 18656),
    ),
    b=_DOPRI5_B,
    error=_minus((*_DOPRI5_B, 0.0), (1951 / 21600, 0.0, 22642 / 50085, 451 / 720, -12231 / 42400, 649 / 6300, 1 / 60)),
    polynomials=_quartic(
        _DOPRI5_B,
        (
            6025192743 / 60171106304,
            0.0,
            51252292925 / 130801643196,
            -2691868925 / 90256659456,
            187940372067 / 3189068634112,
            -1776094331 / 39487288512,
            11237099 / 470086768,
        ),
    ),
    dense_order=4,
    fsal=True,
)

# Tsitouras, Comput. Math. Appl. 62 (2011) 770-775.
TSIT5 = Tableau(
    "tsit5",
    order=5,
    c=(0.0, 0.161, 0.327, 0.9, 0.9800255409045097, 1.0),
    a=(
        (),
        (0.161,),
        (-0.008480655492356989, 0.335480655492357),
        (2.8971530571054935, -6.359448489975075, 4.3622954328695815),
        (5.325864828439257, -11.748883564062828, 7.4955393428898365, -0.09249506636175525),
        (5.86145544294642, -12.92096931784711, 8.159367898576159, -0.071584973281401, -0.028269050394068383),
    ),
    b=(0.09646076681806523, 0.01, 0.4798896504144996, 1.379008574103742, -3.290069515436081, 2.324710524099774),
    error=(
        -0.00178001105222577714,
        -0.0008164344596567469,
        0.007880878010261995,
        -0.1447110071732629,
        0.5823571654525552,
        -0.45808210592918697,
        1 / 66,
    ),
    polynomials=(
        (1.0, -2.763706197274826, 2.9132554618219126, -1.0530884977290216),
        (0.0, 0.13169999999999998, -0.2234, 0.1017),
        (0.0, 3.9302962368947516, -5.941033872131505, 2.490627285651253),
        (0.0, -12.411077166933676, 30.33818863028232, -16.548102889244902),
        (0.0, 37.50931341651104, -88.1789048947664, 47.37952196281928),
        (0.0, -27.896526289197286, 65.09189467479366, -34.87065786149661),
        (0.0, 1.5, -4.0, 2.5),
    ),
    dense_order=4,
    fsal=True,
)

# Prince and Dormand, J. Comput. Appl. Math. 7 (1981) 67-75: RK8(7)13M. The dense output needs no slope beyond the
# thirteen of the step and the end slope.
_DOPRI8_B = (
    14005451 / 335480064,
    0.0,
    0.0,
    0.0,
    0.0,
    -59238493 / 1068277825,
    181606767 / 758867731,
    561292985 / 797845732,
    -1041891430 / 1371343529,
    760417239 / 1151165299,
    118820643 / 751138087,
    -528747749 / 2220607170,
    1 / 4,
)
DOPRI8 = Tableau(
    "dopri8",
    order=8,
    c=(
        0.0,
        1 / 18,
        1 / 12,
        1 / 8,
        5 / 16,
        3 / 8,
        59 / 400,
        93 / 200,
        5490023248 / 9719169821,
        13 / 20,
        1201146811 / 1299019798,
        1.0,
        1.0,
    ),
    a=(
        (),
        (1 / 18,),
        (1 / 48, 1 / 16),
        (1 / 32, 0.0, 3 / 32),
        (5 / 16, 0.0, -75 / 64, 75 / 64),
        (3 / 80, 0.0, 0.0, 3 / 16, 3 / 20),
        (29443841 / 614563906, 0.0, 0.0, 77736538 / 692538347, -28693883 / 1125000000, 23124283 / 1800000000),
        (
            16016141 / 946692911,
            0.0,
            0.0,
            61564180 / 158732637,
            22789713 / 633445777,
            545815736 / 2771057229,
            -180193667 / 1043307555,
        ),
        (
            39632708 / 573591083,
            0.0,
            0.0,
            -433636366 / 683701615,
            -421739975 / 2616292301,
            100302831 / 723423059,
            790204164 / 839813087,
            800635310 / 3783071287,
        ),
        (
            246121993 / 1340847787,
            0.0,
            0.0,
            -37695042795 / 15268766246,
            -309121744 / 1061227803,
            -12992083 / 490766935,
            6005943493 / 2108947869,
            393006217 / 1396673457,
            123872331 / 1001029789,
        ),
        (
            -1028468189 / 846180014,
            0.0,
            0.0,
            8478235783 / 508512852,
            1311729495 / 1432422823,
            -10304129995 / 1701304382,
            -48777925059 / 3047939560,
            15336726248 / 1032824649,
            -45442868181 / 3398467696,
            3065993473 / 597172653,
        ),
        (
            185892177 / 718116043,
            0.0,
            0.0,
            -3185094517 / 667107341,
            -477755414 / 1098053517,
            -703635378 / 230739211,
            5731566787 / 1027545527,
            5232866602 / 850066563,
            -4093664535 / 808688257,
            3962137247 / 1805957418,
            65686358 / 487910083,
        ),
        (
            403863854 / 491063109,
            0.0,
            0.0,
            -5068492393 / 434740067,
            -411421997 / 543043805,
            652783627 / 914296604,
            11173962825 / 925320556,
            -13158990841 / 6184727034,
            3936647629 / 1978049680,
            -160528059 / 685178525,
            248638103 / 1413531060,
            0.0,
        ),
    ),
    b=_DOPRI8_B,
    error=_minus(
        _DOPRI8_B,
        (
            13451932 / 455176623,
            0.0,
            0.0,
            0.0,
            0.0,
            -808719846 / 976000145,
            1757004468 / 5645159321,
            656045339 / 265891186,
            -3867574721 / 1518517206,
            465885868 / 322736535,
            53011238 / 667516719,
            2 / 45,
            0.0,
        ),
    ),
    polynomials=(
        (
            1.0,
            -6.6910181737837595697,
            19.9990069333683970610,
            -30.0610568289666450593,
            22.1396504998094068976,
            -6.3448349392860401388,
        ),
        (0.0,),
        (0.0,),
        (0.0,),
        (0.0,),
        (
            0.0,
            -7.6142658045872677172,
            52.2273532792945524050,
            -121.4999627731334642623,
            116.4422149550342161651,
            -39.6107919852202505218,
        ),
        (
            0.0,
            10.7281392630428866124,
            -46.8919164181093621583,
            83.1721004639847717481,
            -67.1451318825957197185,
            20.3761213808791436958,
        ),
        (
            0.0,
            0.5526637063753648783,
            -0.1890893225010595467,
            9.5724507555993664382,
            -16.5672243527496524646,
            7.3347098826795362023,
        ),
        (
            0.0,
            4.2186562625665153803,
            -35.7075975946222072821,
            87.8406057677205645007,
            -89.9916014847245016028,
            32.8801774352459155182,
        ),
        (
            0.0,
            -0.6627209125361597559,
            6.2736448083240352160,
            -17.4152107770762969005,
            22.6237489648532849093,
            -10.1588990526426760954,
        ),
        (
            0.0,
            -1.2636789001135462218,
            10.3160881272450748458,
            -28.5903289514790976966,
            32.2362340167355370113,
            -12.5401268098782561200,
        ),
        (
            0.0,
            5.4106037898590422230,
            -34.7650769866611817349,
            81.6630950584341412934,
            -82.1020315488359848644,
            29.5553001484516038033,
        ),
        (
            0.0,
            -7.0321379067945741781,
            47.7457971078225540396,
            -114.9375291377009418170,
            116.2662185791119533462,
            -41.7923486424390588923,
        ),
        (
            0.0,
            2.3537586759714983486,
            -19.0082099341608028453,
            50.2558364226176017553,
            -53.9020777466385396792,
            20.3006925822100825485,
        ),
    ),
    dense_order=5,
)

TABLEAUS: dict[str, Tableau] = {
    tableau.name: tableau
    for tableau in (
        EULER,
        MIDPOINT,
        HEUN2,
        HEUN3,
        RK4,
        RK4_CLASSIC,
        ADAPTIVE_HEUN,
        FEHLBERG2,
        BOSH3,
        TSIT5,
        DOPRI5,
        DOPRI8,
    )
}
"""Every method, by name."""


def as_tableau(name: str, method: Any) -> Tableau:
    """A method from its name, or a tableau as it is; ``name`` is the argument that it was given for."""
    return method if isinstance(method, Tableau) else lookup(name, method, TABLEAUS)

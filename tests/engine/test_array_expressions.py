"""The whole surface of `vmhost.engine.numpy` against NumPy: one table of expressions for each subject, evaluated with
both.

Where two ways of rounding are both right the last digits may differ: floats agree to 1e-12 of their size, everything
else is equal: dtypes, shapes, integers, errors' types."""

import numpy
import pytest

import vmhost.engine.numpy
from tests.batches import each
from tests.engine import op_cases
from tests.engine.test_arrays_against_numpy import described, outcome

pytestmark = pytest.mark.usefixtures("backend")  # every test on each backend

random = numpy.random.default_rng(7)
VALUES = {
    "x": numpy.arange(24.0).reshape(2, 3, 4),
    "m": random.normal(size=(5, 7)),
    "v": random.normal(size=20),
    "w": random.uniform(0.1, 2, 20),
    "c": random.normal(size=6) + 1j * random.normal(size=6),
    "i": random.integers(-9, 9, 20),
    "k": random.integers(0, 6, (4, 5)),
    "u": random.integers(0, 200, 17).astype("u1"),
    "f": random.normal(size=(3, 4)).astype("f4"),
    "b": random.uniform(size=(5, 7)) > 0.5,
    "n": numpy.where(random.uniform(size=(5, 7)) > 0.6, numpy.nan, random.normal(size=(5, 7))),
    "odd": numpy.array([0.0, -0.0, 1.0, -1.5, numpy.inf, -numpy.inf, numpy.nan, 1e-310, 1e308]),
    "e": numpy.zeros(0),
}

SURFACE = {
    "axes": (
        """
        np.vecdot(x, x, axis=0); np.vecdot(x, x, keepdims=True); np.vecdot(x, x, axis=1, keepdims=True)
        np.vecdot(x, x, axes=[0, 0]); np.vecdot(x, x, axes=[1, 1, 0], keepdims=True); np.vecdot(v, v, keepdims=True)
        np.vecdot(x, x, axis=0, axes=[0, 0]); np.vecdot(x, x, axes=[0]); np.vecdot(x, x, axes=(0, 0))
        np.vecdot(x, x, axis=5); np.matvec(x, x[0, 0], axes=[(1, 2), 0, 0])
        np.matvec(x, x[:, 0, 0], axes=[(2, 0), 0, -1]); np.vecmat(x[0, 0], x, axes=[0, (2, 1), 0])
        np.vecmat(x[0, 0], x, axes=[0, (2, 1), (-1,)]); np.linalg.vecdot(x, x, axis=1)
        np.matmul(m, m, axes=[(0, 1), (1, 0), (0, 1)]); np.matmul(m, m, axes=[(1, 0), (0, 1), (1, 0)])
        np.matmul(x, x, axes=[(0, 1), (1, 0), (0, 2)]); np.matmul(m, w[:7], axes=[(0, 1), (0,), (0,)])
        np.matmul(m, w[:7], axes=[(0, 1), 0, 0]); np.matmul(v, v, axes=[0, 0, ()]); np.matmul(v, v, axes=[0, 0])
        np.matmul(m, m.T, axis=0); np.matmul(m, m.T, axes=(0, 1)); np.matmul(m, m.T, axes=[0, (0, 1), (0, 1)])
        np.matmul(m, m.T, axes=[(0, 0), (0, 1), (0, 1)]); np.matmul(m, m.T, axes=[(0, 5), (0, 1), (0, 1)])
        np.matmul(m, m.T, axes=[(0, 1), (0, 1), (0, 5)]); np.matmul(m, m.T, dtype='f4'); np.matmul(m, m.T, dtype=int)
        np.matmul(m, m.T, dtype=int, casting='unsafe'); np.matmul(m, m.T, order='F')
        np.matmul(m, m.T, out=np.zeros((5, 5)), axes=[(0, 1), (0, 1), (1, 0)]); np.matmul(m, m.T, nonsense=1)"""
    ),
    "questions about types": (
        """
        str(np.iinfo('i2')); str(np.finfo(float)); str(np.finfo('f2')); np.finfo('f4').machep; np.finfo(float).negep
        np.finfo(float).iexp; np.finfo(int); np.can_cast('f8', 'i4', 'nonsense')
        np.broadcast_shapes((6, 7), (5, 6, 1), (7,), (5, 1, 7)); np.broadcast_shapes((-1,)); np.broadcast_shapes('a')
        np.broadcast_shapes((1.5,)); np.broadcast_shapes(); np.broadcast_shapes(np.int64(3), [1, 3])
        np.broadcast_shapes(3, (2,)); np.zeros((2, 1))[np.zeros((2, 0), bool)]; np.zeros((0, 1))[np.zeros((0, 0), bool)]
        np.zeros((0, 1))[np.zeros((0, 3), bool)]"""
    ),
    "faster ways": (
        """
        np.nanmax(n, 5); np.nanmax(n, (0, 0)); np.nanmax(np.ones((2, 0, 3)), 1); np.nanmax(np.ones((2, 0, 3)), 0)
        np.nanmin(n, (0, 1), keepdims=True); np.nanmax(n, -2); np.nanmax(np.array(3.0)); np.nanmin(x, (0, 2))
        np.nanmax(f, 0); np.histogram([1, 2, np.nan, 3], [1, 2, 3]); np.histogram(e, [1, 2, 3])
        np.histogram(i, [-3, 0, 0, 5]); np.histogram(v, [0, 1, 5], density=True); np.delete(v, [-1, 70])
        np.delete(m, [0, -1, 0], 1); np.isin(u, u[:3], invert=True); np.isin(i, i[:4])
        np.isin([1, 2**62, -2**63], [5, -2**63]); np.add.reduceat(m, [0, 2, 1], 1); np.maximum.reduceat(i, [3, 3, 0])
        np.subtract.reduceat(v, [0, 5]); np.logical_or.reduceat(b, [0, 2])"""
    ),
    "orders": (
        """
        x.swapaxes(1, 2).ravel('K'); x.T.ravel('A'); np.ravel(x.T, order='A'); x.swapaxes(0, 1).flatten('K')
        x[:, ::-1].ravel('K'); x.ravel('X'); x.reshape(4, 6, order='K'); x.reshape(4, 6, order='A')
        x.T.reshape(4, 6, order='A'); m.tobytes('F'); m.T.tobytes('A'); m.tobytes(order='K')
        same_array(np, np.asfortranarray, m.T); same_array(np, np.asfortranarray, m)
        same_array(np, np.ascontiguousarray, m); protected(np, m); np.shares_memory(m, m[::2, ::2], max_work=0)
        np.histogram2d(v, w, [[0, 1, 2], [0, 1]]); np.nan_to_num(np.inf)
        np.nan_to_num(odd, nan=v[:9], posinf=w[:9], neginf=i[:9]); np.nan_to_num(c[:2], nan=[1.0, 2.0])"""
    ),
    "windows": (
        """
        np.bartlett(7); np.blackman(8); np.hamming(9); np.hanning(1); np.kaiser(12, 14); np.kaiser(1, 3); np.hanning(0)
        np.i0(v * 10); np.i0([1, 20]); np.i0(f); np.i0(c); np.blackman(6.0)"""
    ),
    "bits": (
        """
        np.packbits(b); np.packbits(b, 1); np.packbits(b, 0, 'little'); np.packbits([1, 0, 5]); np.packbits(v)
        np.unpackbits(u); np.unpackbits(u[:, None], 1); np.unpackbits(u, count=20, bitorder='little')
        np.unpackbits(u, count=-3); np.unpackbits(i); np.unpackbits(u, count=200)
        np.unpackbits(u[:16].reshape(4, 4), 0); np.packbits(e.astype(bool)); np.packbits(b, 5); np.bitwise_count(i)
        np.bitwise_count(u); np.bitwise_count(2**40 - 1); np.bitwise_count(v); np.bitwise_count(np.int8(-128))
        np.binary_repr(5); np.binary_repr(-5); np.binary_repr(-5, 8); np.binary_repr(0, 3); np.binary_repr(9, 2)
        np.base_repr(255, 16); np.base_repr(-7, 3, 2); np.base_repr(0); np.base_repr(5, 40)"""
    ),
    "grids": (
        """
        np.mgrid[0:5, 0:2]; np.mgrid[0:1:5j]; np.mgrid[1:3, 0:1:3j]; np.ogrid[0:5, 1:4:2]; np.mgrid[-1:1:.5]
        np.r_[1:4, 0, [7, 8]]; np.r_[0:1:3j, 5]; np.r_['0,2', [1, 2], [3, 4]]; np.r_['1,2,0', [1, 2], [3, 4]]
        np.c_[[1, 2], [3, 4]]; np.c_[m, m]; np.r_[m, m]; np.r_[np.float32(1), 2, 3]; np.r_[f[0], 1]; np.r_['-1', m, m]
        np.index_exp[1, 2:]; np.s_[1]; np.ix_([1, 2], [0, 3]); m[np.ix_([1, 2], [0, 3])]
        np.ix_([True, False, True], [1]); np.ix_([[1]]); list(np.ndindex(2, 3)); list(np.ndindex((2,)))
        list(np.ndindex()); [(p, float(q)) for p, q in np.ndenumerate(m[:2])]; np.broadcast([1, 2], [[1], [2]]).shape
        [tuple(map(int, p)) for p in np.broadcast([1, 2], [[1], [2]])]; np.unravel_index([3, 5], (2, 3))
        np.unravel_index(4, (2, 3), 'F'); np.unravel_index(6, (2, 3)); np.ravel_multi_index(([0, 1], [2, 0]), (2, 3))
        np.ravel_multi_index((1, 2), (2, 3), order='F'); np.ravel_multi_index(([5], [7]), (2, 3), mode='wrap')
        np.ravel_multi_index(([5], [7]), (2, 3), mode=('clip', 'wrap')); np.ravel_multi_index(([5], [7]), (2, 3))
        np.diag_indices_from(np.eye(3)); np.diag_indices_from(m); np.tril_indices_from(m); np.triu_indices_from(m, 1)
        np.mask_indices(4, np.triu, 1); np.tril_indices(3, 1, 4); fill(np, np.zeros((4, 4)), 5)
        fill(np, np.zeros((5, 3)), 5, True); fill(np, np.zeros((3, 5)), [1, 2]); fill(np, np.zeros((5, 2)), 1)
        fill(np, np.zeros((2, 2, 2)), 3); fill(np, np.zeros(3), 3)"""
    ),
    "apply": (
        """
        np.apply_along_axis(lambda row: row.sum(), 1, m); np.apply_along_axis(lambda row: row[::-1], 0, m)
        np.apply_along_axis(lambda row: np.outer(row, row), 1, x); np.apply_along_axis(len, 0, m)
        np.apply_over_axes(np.sum, x, [0, 2]); np.apply_over_axes(np.sum, x, -1); np.iterable(3); np.iterable([1])
        np.select([i < 0, i > 3], [i, i ** 2], 42); np.piecewise(v, [v < 0, v >= 0], [-1, lambda y: y * 2])
        np.piecewise(v, [v < 0], [lambda y: -y, 7]); np.piecewise(v, v < 0, [1, 2]); np.choose(k % 2, [k, -k])
        np.choose([0, 5], [[1, 2], [3, 4]]); np.choose([0, 5], [[1, 2], [3, 4]], mode='clip')
        np.compress([0, 1, 1], m, 1); np.extract(b, m)"""
    ),
    "einsum": (
        """
        np.einsum('ij,jk->ik', m, m.T); np.einsum('ij,jk', m, m.T); np.einsum('ij->ji', m); np.einsum('ii', m[:, :5])
        np.einsum('ii->i', m[:, :5]); np.einsum('i,i', v, w); np.einsum('i,j->ij', v, w); np.einsum('ij->', m)
        np.einsum('ij->j', m); np.einsum('...j,j', x, np.arange(4)); np.einsum('...ij,...kj->...ik', x, x)
        np.einsum('ijk,ilm,njm,nlk,abc->', *[np.ones((2, 2, 2))] * 5); np.einsum('i,i,i->i', v, v, w)
        np.einsum('ij,jk,kl->il', m, m.T, m); np.einsum('ij,jk,kl->il', m, m.T, m, optimize='optimal')
        np.einsum(m, [0, 1], m, [2, 1], [0, 2]); np.einsum(m, [0, 1]); np.einsum('i,ij->j', [1, 2], [[1, 2], [3, 4]])
        np.einsum('i...,i...->...', x, x); np.einsum('ij,ij->ij', m, m); np.einsum('ijk,k->ij', x, np.arange(4.0))
        np.einsum('bij,bjk->bik', x, x.swapaxes(1, 2)); np.einsum('ij,j', m, v); np.einsum('ij,kl->ki', m, m)
        np.einsum('ij->ijk', m); np.einsum('i$', v); np.einsum('ij', v); np.einsum('i,j', v); np.einsum('ii', m)
        np.einsum('i->ii', v); np.einsum('i,i->', b[0], b[1]); np.einsum('i,j->', i, i)
        np.einsum('iij->j', np.ones((2, 2, 3))); np.einsum('i', c); np.einsum('i,i->', c, c); np.einsum('ij,ij', f, f)
        np.einsum('ij,jk,kl->il', m, m.T, m, optimize=['einsum_path', (0, 1), (0, 1)])
        np.einsum('ij,jk->ik', m, m.T, out=np.zeros((5, 5))); np.einsum('i,i', [1, 2], [3, 4], dtype=float)
        np.einsum('ij,ik->ijk', m, m[:, :1]); np.einsum('i,i->i', np.ones(1), v)
        np.einsum('aab->b', np.ones((1, 1, 4))); np.einsum('', 3); np.einsum(',i->i', 3, v)
        np.einsum_path('ij,jk,kl->il', m, m.T, m)[0]; np.einsum_path('ij,jk', m, m.T)[0]
        np.einsum_path('ij,jk,kl->il', m, m.T, m, optimize='optimal')[0]"""
    ),
    "polynomials": (
        """
        np.polyval([1, 2, 3], 2); np.polyval([1, 2, 3], v); np.polyval(v[:3], m); np.poly([1, 2, 3]); np.poly([])
        np.poly([1j, -1j]); np.polyint([1, 2, 3]); np.polyint([1.0, 2], 2, [3, 4]); np.polyder([1, 2, 3, 4])
        np.polyder([1.0, 2, 3, 4], 2); np.polyadd([1, 2], [3, 4, 5]); np.polysub([1, 2], [3, 4, 5])
        np.polymul([1, 2], [3, 4, 5]); np.polydiv([1, 5, 6, 1], [1, 2]); np.polydiv([1.0, 2], [1, 2, 3])
        np.polyder([1], -1); np.polyint([1], -1); np.sort(np.roots([1, -6, 11, -6])); np.roots([0, 0, 2, 0])
        np.roots([3]); np.sort_complex(np.roots([1, 0, 1])); np.roots(m); np.poly([[2.0, 0], [0, 3]])
        np.polyfit(v, w, 2); np.polyfit(v, m[:, :1], 1); np.polyfit(v, np.stack([v, w], 1), 2, w=w)
        np.polyfit(v, w, 1, cov=True); np.polyfit(v, w, 1, cov='unscaled'); np.polyfit(v, w, -1)
        np.polyfit(v, w, 2, full=True)"""
    ),
    "quantiles": (
        """
        np.median(v); np.median(m, 0); np.median(m, (0, 1)); np.median(m, 1, keepdims=True); np.median(n, 0)
        np.median(i); np.median(e); np.median(k, 1); np.median(f); np.median(x, (0, 2), keepdims=True); np.nanmedian(n)
        np.nanmedian(n, 0); np.nanmedian(n, 1, keepdims=True); np.nanmedian(i); np.quantile(v, 0.3)
        np.quantile(m, [0.1, 0.5, 1], 1); np.quantile(m, [[0.1], [0.5]], 0); np.quantile(i, 0.25); np.quantile(f, 0.4)
        np.quantile(f, np.array([0.4, 0.2])); np.quantile(v, 1.5); np.quantile(v, 0); np.quantile(i, 1)
        np.quantile(i, [0, 1]); np.quantile(n, 0.5, 0); np.quantile(m, 0.2, (0, 1), keepdims=True)
        np.quantile(m, 0.2, 1, keepdims=True); np.quantile(m, [0.2, 0.4], 1, keepdims=True); np.quantile(c, 0.5)
        np.percentile(v, 30); np.percentile(v, [0, 10, 100]); np.percentile(v, 101); np.nanquantile(n, 0.4)
        np.nanquantile(n, [0.4, 0.1], 1); np.nanpercentile(n, 40, 0); np.nanpercentile(m, 40, 0)
        np.quantile(v, 0.3, weights=w); np.quantile(v, 0.3, method='foo'); np.quantile(e, 0.5)
        np.quantile(v, [0.3, 0.9], method='inverted_cdf', weights=w)
        np.quantile(m, 0.5, 1, method='inverted_cdf', weights=w[:7])
        np.quantile(m, [0.0, 0.5], 0, method='inverted_cdf', weights=np.abs(m))
        np.quantile(v, 0.3, method='inverted_cdf', weights=-w)
        np.nanquantile(n, 0.5, 0, method='inverted_cdf', weights=np.ones((5, 7)))"""
    ),
    "nans": (
        """
        np.nansum(n); np.nansum(n, 0); np.nanprod(n, 1); np.nanmax(n, 0); np.nanmin(n); np.nanmax(i); np.nanmin(u)
        np.nanmean(n, 0); np.nanvar(n, 0); np.nanstd(n, 1, ddof=1); np.nanargmax(n); np.nanargmin(n[:3], 1)
        np.nanargmax(n * np.nan); np.nancumsum(n, 1); np.nancumprod(n, 0); np.nanmax(n * np.nan, 0)
        np.nanmean(n * np.nan); np.nansum(c); np.nanmin(n, 1, keepdims=True); np.nanmax(n, initial=9)
        np.nansum(n, where=b); np.nanmean(n, where=b); np.nanvar(i); np.nanmax(n, where=b, initial=-5); np.nansum(f)
        np.nanmean(f, 0)"""
    ),
    "histograms": (
        """
        np.histogram(v); np.histogram(v, 5, (-1, 1)); np.histogram(v, [-1, 0, 2]); np.histogram(i, 4)
        np.histogram(v, 4, density=True); np.histogram(u); np.histogram(v, 4, weights=w); np.histogram(v, 'auto')
        np.histogram(v, 'fd'); np.histogram(v, 'doane'); np.histogram(v, 'scott'); np.histogram(e)
        np.histogram(v, 'rice'); np.histogram(v, 'sturges'); np.histogram(v, 'sqrt'); np.histogram(i, 'auto')
        np.histogram(v, 'foo'); np.histogram(v, 0); np.histogram(v, [2, 1]); np.histogram(v, 3, (2, 1)); np.histogram(n)
        np.histogram(f); np.histogram([5, 5]); np.histogram_bin_edges(v, 6); np.histogram(v, 'stone')
        np.histogram2d(v, w); np.histogram2d(v, w, (3, 4)); np.histogram2d(v, w, [[-1, 0, 1], 3])
        np.histogram2d(v, w, [0, 1, 2]); np.histogram2d(v, w, density=True); np.histogramdd(m, 3)
        np.histogramdd(m[:, :2], (2, 3), weights=w[:5]); np.histogramdd(m, (2, 3)); np.bincount(k.ravel())
        np.bincount(k.ravel(), minlength=9); np.bincount(k[0], w[:5]); np.bincount(i); np.bincount(v); np.bincount([])
        np.bincount(k); np.digitize(v, [-1, 0, 1]); np.digitize(v, [1, 0, -1], True); np.digitize(v, [1, 0, 2])
        np.digitize(0.5, [0, 1]); np.digitize(i, [0, 3], right=True); np.histogram(np.linspace(0, 1, 11), 10)
        np.histogram(np.arange(12), 3); np.histogram(v, 4, weights=i); np.histogram(v, 4, weights=w[:3])"""
    ),
    "sets": (
        """
        np.unique(i); np.unique(i, True, True, True); np.unique(k, axis=0); np.unique(k % 2, True, True, True, axis=1)
        np.unique(n); np.unique(n, equal_nan=False); np.unique(k, return_inverse=True)
        np.unique([[1, 1], [1, 1]], axis=0, return_counts=True); np.unique(e); np.unique(x, axis=2)
        np.unique(x, axis=3); tuple(np.unique_all(k)); tuple(np.unique_counts(i)); tuple(np.unique_inverse(k))
        np.unique_counts(i).counts; np.sort(np.unique_values(i)); np.union1d(i, k); np.intersect1d(i, k)
        np.intersect1d(i, k, return_indices=True); np.intersect1d([3, 1], [1, 3], True, True); np.setdiff1d(i, k)
        np.setxor1d(i, k); np.isin(i, k); np.isin(k, [1, 2], invert=True); np.isin(3, [3]); np.isin(v, [])
        np.isin(i, k, kind='foo'); np.setdiff1d([3, 3, 1], [1], True); np.setxor1d([1, 2], [2, 3], True)
        np.flatnonzero(i); np.argwhere(b); np.lexsort((i, i % 3)); np.lexsort((k, k % 2), 0); np.lexsort(([1, 1, 0],))
        np.sort(np.partition(v, 3)[:4]); np.partition(v, 30); np.partition(v, 1.5); part(np, v, 7); part(np, m, 2, 0)
        part(np, i, [3, -1, 0, 3]); part(np, f, -1, 1); part(np, c, 2); part(np, n, 4); part(np, v, 3, None)
        part(np, u, 5); np.partition(e, 0); np.argpartition(e, 3); part(np, np.tile(v, 300), [10, 3000, 5999])
        part(np, np.tile(i, 300), 3000); part(np, odd, 5); part(np, b, 3); part(np, np.tile(f, 90), range(9), 0)
        np.sort(v[np.argpartition(v, 3)[:4]]); np.sort_complex([3, 1, 2]); np.sort_complex(c)"""
    ),
    "arithmetic": (
        """
        np.divmod(i, 4); divmod(i, 4); np.modf(odd); np.modf(f); np.modf(np.int8(3)); np.frexp(odd); np.frexp(f)
        np.frexp(3); np.ldexp(odd, 3); np.ldexp(odd, -1050); np.ldexp(1.5, [2000, -2000, 5])
        np.ldexp(np.float32(1.1), [-140, 3]); np.ldexp(5e-324, 100); np.spacing(odd); np.spacing(f); np.deg2rad(i)
        np.deg2rad(f); np.rad2deg(np.int8(2)); np.radians(v); np.degrees(v); np.angle(c); np.angle(c, True); np.angle(v)
        np.angle(-0.0); np.unwrap(np.cumsum(v * 4)); np.unwrap([0, 3, 6, 1], period=4); np.unwrap(m * 9, axis=0)
        np.unwrap(v * 9, 4); np.sinc(v); np.sinc(0); np.sinc([0, 1]); np.fabs(i); np.fabs(c); np.float_power(i, 2)
        np.float_power(f, f); np.float_power(-1.0, 0.5); np.heaviside(odd, 0.5); np.heaviside(f, 1); np.heaviside(i, i)
        np.logaddexp2(v, w); np.logaddexp2(odd, odd); np.logaddexp2(f, 1); np.gcd(i, 12); np.gcd(i, i[::-1])
        np.gcd(np.int8(12), 18); np.gcd(u, u[::-1]); np.gcd(v, 2)
        np.gcd(np.array([-128, 0, 5], 'i1'), np.array([-128, -128, 0], 'i1'))
        np.lcm(np.array([-128, 6], 'i1'), np.array([-128, -4], 'i1')); np.gcd(2**40 * i, 2**41 + 0 * i); np.lcm(i, 12)
        np.lcm(u, 3); np.gcd.reduce([12, 18, 30]); np.lcm.reduce([2, 3, 4]); np.lcm(0, 5)
        np.real_if_close([1 + 1e-15j]); np.real_if_close(c); np.real_if_close([1 + 1e-3j], 1e-2)
        np.interp(v, [-1, 0, 1], [3, 5, 4]); np.interp(v, [-1, 0, 1], [3, 5, 4], -9, 9); np.interp(0.5, [0, 1], [2j, 4])
        np.interp(v * 90, [10, 100, 350], [3, 5, 4], period=360); np.interp(v, [0], [5]); np.interp(v, [0, 1], [5])
        np.interp(odd, [0, 1], [1, np.inf]); np.interp(v, [0, 1], [1, 2], period=0); np.interp(n, [0, 1], [1, 2])
        np.add.reduceat(v, [0, 4, 1, 7]); np.add.reduceat(m, [0, 3], 1); np.add.reduceat(v, [0, 40])
        np.deg2rad(v, out=np.zeros(20)); np.gcd(i, 4, where=i > 0, out=np.zeros(20, int)); np.fabs(i, dtype='f4')
        np.modf(v, np.zeros(20), np.zeros(20)); np.gcd.outer([4, 6], [8, 9]); np.gcd.accumulate([12, 18, 27])
        np.add.reduceat(k, [1, 0], axis=0); np.maximum.reduceat(v, [0, 5]); np.gcd(1, 2, 3, 4); np.gcd(1)
        np.heaviside(c, 1); np.nextafter(f, 1); np.isneginf(odd); np.isposinf(odd); np.nan_to_num(odd); np.nan_to_num(c)
        np.nan_to_num(np.inf, posinf=3); np.round(v, 2); np.round(i, -1); np.round(c, 1); np.around(f, 1)
        np.emath.sqrt(-1); np.emath.sqrt(v); np.emath.log(-2.0); np.emath.power(-2, 0.5); np.emath.arccos(2)
        np.emath.log2([4, -4]); np.emath.logn(2, 8); np.emath.sqrt(w)"""
    ),
    "statistics": (
        """
        np.average(v, weights=w); np.average(m, 1, w[:7]); np.average(x, (0, 2), np.ones((2, 4)))
        np.average(m, 0, returned=True); np.average(m, weights=w); np.average(v, weights=v * 0)
        np.average(i, weights=i * i + 1); np.average(m, 1, keepdims=True); np.cov(m); np.cov(m, rowvar=False)
        np.cov(v, w); np.cov(v); np.cov(m, bias=True); np.cov(m, ddof=0); np.cov(m, fweights=[1, 2, 1, 3, 1, 1, 2])
        np.cov(m, aweights=w[:7]); np.cov(c); np.cov(m, fweights=[1.5] * 7); np.cov(m, aweights=w[:3])
        np.cov(m, fweights=[1, 2, 1, 3, 1, 1, 2], aweights=w[:7]); np.cov(f, dtype='f4'); np.cov(i); np.corrcoef(m)
        np.corrcoef(v, w); np.corrcoef(v); np.corrcoef(m, rowvar=False); np.corrcoef(c, c[::-1]); np.gradient(v)
        np.gradient(v, 0.5); np.gradient(m); np.gradient(m, axis=1); np.gradient(v, np.cumsum(w))
        np.gradient(m, np.arange(5.0) ** 2, 2.0); np.gradient(v, edge_order=2)
        np.gradient(v, np.cumsum(w), edge_order=2); np.gradient(i); np.gradient([1]); np.gradient(v, w[:3])
        np.gradient(x, axis=(0, 2)); np.gradient(f); np.gradient(v, 1, 2); np.gradient(v, edge_order=3); np.trapezoid(v)
        np.trapezoid(v, np.cumsum(w)); np.trapezoid(m, dx=0.5, axis=0); np.trapezoid(m, m, axis=0); np.diff(m, 2, 0)
        np.diff(b); np.diff(v, prepend=0); np.diff(m, append=m[:, :2]); np.diff(v, -1); np.ediff1d(v)
        np.ediff1d(i, 5, [1, 2]); np.cumulative_sum(v); np.cumulative_sum(m, axis=-1, include_initial=True)
        np.cumulative_prod(m, axis=0, dtype='f4'); np.cumulative_sum(m); np.var(m, 0, ddof=1); np.std(c)
        np.var(m, where=b); np.std(m, 1, keepdims=True); np.var(m, correction=1); np.ptp(m, 1); np.ptp(i); np.var(f, 0)
        np.std(i, (0,)); np.mean(b); np.var(b); np.var(v, dtype='f4')"""
    ),
    "products": (
        """
        np.vecdot(m, m); np.vecdot(c, c); np.vecdot(m, m, axis=0); np.vecdot(u, u); np.vecdot(b, b); np.vecdot(v, w[:3])
        np.vecdot(x, x[0]); np.matvec(m, w[:7]); np.matvec(x, x[:, 0]); np.vecmat(w[:5], m)
        np.vecmat(c, np.ones((6, 2))); np.matvec(m, w); np.inner(m, m); np.inner(v, w); np.inner(3, v); np.outer(i, v)
        np.vdot(c, c); np.vdot(m, m); np.tensordot(x, x, 3); np.tensordot(x, x, ([0, 1], [0, 1]))
        np.tensordot(m, m.T, 1); np.tensordot(m, m, 1); np.tensordot(v, w, 0); np.trace(m); np.trace(x, 1, 0, 2)
        np.kron(m, [[1, 2]]); np.kron(v, [1, 2]); np.kron(2, m); np.kron(x, m); np.cross([1, 2, 3], [4, 5, 6])
        np.cross(m[:3], m[1:4], axis=0); np.cross(v, v); np.cross(m[:, :3], [1, 2, 3]); np.convolve(v, w)
        np.convolve(v, [1, 2, 3], 'same'); np.convolve(v, [1, 2, 3], 'valid'); np.convolve(i, [1, 2])
        np.convolve([], v); np.correlate(v, [1, 2, 3]); np.correlate([1, 2, 3], v, 'full')
        np.correlate(c, c[:2], 'same'); np.correlate(v, w, 'full'); np.convolve(c, [1j, 2]); np.convolve(f[0], f[1])
        np.convolve([1, 2], [1, 2, 3, 4], 'same'); np.convolve([1, 2], [1, 2, 3, 4], 'valid')
        np.correlate([1, 2], [1, 2, 3, 4], 'same'); np.convolve(v, w, 'foo')"""
    ),
    "shapes": (
        """
        np.block([[m, m], [m, m]]); np.block([v, w]); np.block([[1, 2], [3, 4]]); np.block(3); np.block([[m], [m[:1]]])
        np.block([[1], 2]); np.block([]); np.block([[np.eye(2), np.zeros((2, 3))], [np.ones((1, 5))]])
        np.insert(v, 3, 9); np.insert(v, [3, 1], [9, 8]); np.insert(m, 1, 7, 1)
        np.insert(m, [1, 2], [[7], [8], [9], [1], [2]], 1); np.insert(m, 1, m[0], 0); np.insert(v, slice(0, 4), 1)
        np.insert(v, 50, 1); np.insert(m, 0, m[:2], 0); np.insert(i, 2, 3.7); np.insert(m, [2], m[:, :1], 1)
        np.insert(v, [0, 0], [1, 2]); np.insert(v, [], 4); np.delete(v, 3); np.delete(v, [1, -1])
        np.delete(m, slice(1, 3), 1); np.delete(v, 50); np.delete(m, b[:, 0], 0); np.delete(v, []); np.delete(v, [50])
        np.delete(v, [[1, 2]]); np.trim_zeros([0, 0, 1, 0, 2, 0]); np.trim_zeros([0, 1, 0], 'f')
        np.trim_zeros(np.pad(m, 1)); np.trim_zeros(np.pad(m, 1), 'b', 0); np.trim_zeros([0, 0]); np.trim_zeros([1], 'x')
        np.pad(v, 2, 'linear_ramp'); np.pad(m, 1, 'mean'); np.pad(m, ((1, 2), (0, 3)), 'median')
        np.pad(m, 2, 'minimum', stat_length=2); np.pad(i, 2, 'maximum'); np.pad(i, 2, 'mean')
        np.pad(v, 3, 'reflect', reflect_type='odd'); np.pad(v, 3, 'symmetric', reflect_type='odd')
        np.pad(v[:3], 9, 'reflect', reflect_type='odd'); np.pad(v[:3], 9, 'symmetric', reflect_type='odd')
        np.pad(m, 1, 'linear_ramp', end_values=((1, 2), (3, 4))); np.pad(i, 2, 'linear_ramp', end_values=5)
        np.pad(m, 1, constant_values=((1, 2), (3, 4))); np.pad(v, 2, 'foo'); np.pad(v, 2, 'edge', stat_length=3)
        np.pad(v, 2, pads); np.pad(m, {1: (1, 2)}); np.pad(m, {-1: 2}, 'wrap'); np.pad(m, 1, 'empty').shape
        np.pad(e, 1, 'edge'); np.pad(v, -1); np.pad(v, 1.5); np.pad(v[:1], 3, 'reflect', reflect_type='odd')
        np.pad(v, (2, 3), 'wrap'); np.pad(m, ((3, 2), (2, 3)), 'reflect')
        np.pad(v, 2, 'constant', constant_values=(4, 6)); np.pad(v, (3, 0), 'mean', stat_length=(2, 1))
        np.pad(i, 1, constant_values=2.7); np.vander(v[:4]); np.vander(i[:4], 3, True); np.vander(c, 3); np.vander(m)
        np.asarray_chkfinite(v); np.asarray_chkfinite(odd); np.resize(v, (3, 9)); np.resize(v, 0); np.rollaxis(x, 2)
        np.rollaxis(x, 0, 3); np.take_along_axis(m, np.argsort(m, 0), 0); np.roll(x, (1, 2), (0, 1)); np.repeat(m, 2)
        np.unstack(m); np.diagflat(m[:2, :2]); np.diag(m, 1); np.lib.stride_tricks.sliding_window_view(v, 3)
        np.lib.stride_tricks.sliding_window_view(m, (2, 3)); np.lib.stride_tricks.sliding_window_view(m, 2, 1)
        np.lib.stride_tricks.sliding_window_view(m, 9, 1); np.lib.stride_tricks.sliding_window_view(m, (2, 2), (0, 0))
        np.lib.stride_tricks.sliding_window_view(m, 2); np.lib.stride_tricks.as_strided(v, (3, 2), (16, 8))
        np.lib.array_utils.normalize_axis_index(-1, 3); np.lib.array_utils.normalize_axis_tuple((0, -1), 3)
        np.lib.array_utils.normalize_axis_index(3, 3); np.shares_memory(v, v[3:]); np.shares_memory(v[::2], v[1::2])
        np.may_share_memory(v[::2], v[1::2]); np.shares_memory(v, w); np.shares_memory(m.T, m[1:, 2])
        np.shares_memory(m[:, 0], m[:, 1]); np.may_share_memory(v[:4], v[4:]); np.broadcast_arrays(v, m[:, :1])
        np.meshgrid(v[:2], w[:3], sparse=True); np.append(v, 1); np.append(m, m[:1], 0); np.array_split(v, 3)
        np.geomspace(1, 1000, 4); np.geomspace(-1, -8, 4); np.logspace(0, 2, 3); np.geomspace(1j, 8j, 4)
        np.linspace(0, 10, 5, dtype=int); np.linspace(0, 1, 5, retstep=True); np.geomspace([1, 2], [8, 16], 4)
        np.logspace(0, 2, 3, base=[2, 3]); np.indices((2, 3)); np.fromfunction(lambda p, q: p + q, (2, 3))
        np.fromiter(range(4), float); np.tril(x, 1); np.triu(x, -1); np.tril(v[:3]); np.identity(2)
        np.eye(2, 3, dtype='i4'); np.copyto(np.zeros(3), 1)"""
    ),
    "arrays": (
        """
        list(map(float, m.flat)); m.flat[3]; m.flat[1:9:2]; m.T.flat[[0, 3]]; len(m.flat); flat(m, 3, 7)
        flat(m.T, slice(None, None, 6), 1); flat(m, [1, 4], [5, 6]); flat(m, slice(0, 4), [1, 2]); flat(m.T, [0, 1], 9)
        flat(m, ..., 2); flat(m, 99, 2); m.flat.base; next(m.flat); m.flat.index; flat(v[::2], [0, 1], 3)
        flat(m, b.ravel(), 0); np.add(i, 2.5, out=np.zeros(20, int), casting='unsafe')
        np.add(i, 2.5, out=np.zeros(20, int)); np.add(v, 1, out=np.zeros(20, 'f4'), casting='safe')
        np.exp(v, out=np.zeros(20, int), casting='unsafe'); np.add(i, 1, casting='foo')
        np.require(m, 'f4', ['F']).flags.f_contiguous; np.require(m.T, requirements='CW').flags.c_contiguous
        np.require(m, requirements=['C', 'F']); round(v[0]); round(v[0], 2); round(i[0]); round(m)
        __import__('math').trunc(v[0]); i.byteswap(); f.byteswap(); c.byteswap(); i.copy().byteswap(True)
        v.compress(v > 0); k.argpartition(2)[0, 2] * 0; np.add.identity; np.multiply.identity; np.maximum.identity
        np.logical_and.identity; np.bitwise_and.identity; np.add.nargs; np.exp.nargs; np.add.signature"""
    ),
    "dtypes": (
        """
        np.dtype(np.common_type(f)).name; np.dtype(np.common_type(i, f)).name; np.dtype(np.common_type(c)).name
        np.mintypecode(['f', 'i']); np.mintypecode('fD'); np.mintypecode('dF'); bool(np.True_); bool(np.False_)
        str(np.min_scalar_type(300)); str(np.min_scalar_type(-3)); str(np.min_scalar_type(1e50)); np.iinfo('i2').max
        float(np.finfo('f4').eps); np.finfo(float).precision; np.issubdtype('f4', np.floating)
        np.isdtype(np.dtype('f4'), 'real floating'); np.isdtype(np.dtype('f4'), ('integral', 'bool')); np.isfortran(m.T)
        np.isscalar(3); np.iscomplexobj(c); np.isreal(c); np.array_equiv([1, 1], 1); np.array_equal(n, n)
        np.array_equal(n, n, True); np.isclose(odd, odd); np.isclose(odd, odd, equal_nan=True); np.allclose(v, v + 1e-9)
        np.isclose(i, i + 1); np.isclose(1, 1.00001)"""
    ),
    "text": (
        """
        np.format_float_positional(np.pi); np.format_float_positional(1.0); np.format_float_positional(1e10)
        np.format_float_positional(np.float32(0.1)); np.format_float_positional(1e-7, 3)
        [np.format_float_positional(q, 3) for q in (1.0004, 0.0104, 0.9999, 0.25, 0.0196)]
        np.format_float_positional(3.14159, 3, unique=False); np.format_float_positional(1.5, 5, unique=False, trim='0')
        np.format_float_positional(1.0, trim='-'); np.format_float_positional(12.5, pad_left=5, pad_right=4)
        np.format_float_positional(-2.0, sign=True); np.format_float_positional(2.0, sign=True, trim='0')
        np.format_float_positional(123.456, 4, fractional=False); np.format_float_positional(np.nan)
        np.format_float_positional(-0.0); np.format_float_positional(1.25, min_digits=5)
        np.format_float_scientific(np.pi); np.format_float_scientific(1.0); np.format_float_scientific(123456.0, 3)
        np.format_float_scientific(1e-300, exp_digits=4); np.format_float_scientific(1.5, 3, unique=False)
        np.format_float_scientific(np.float32(1e10), trim='0'); np.format_float_scientific(-np.inf)
        np.format_float_scientific(0.0, sign=True)"""
    ),
}
for name in dir(vmhost.engine.numpy):  # all loaded here, so that no test is the first to import one
    getattr(vmhost.engine.numpy, name)
CASES = [
    (subject, line.strip())
    for subject, text in SURFACE.items()
    for part in text.splitlines()
    for line in part.split("; ")
    if line.strip()
]


def fill(np, array, value, wrap=False):
    np.fill_diagonal(array, value, wrap)
    return array


def same_array(np, function, array):
    array = function(array)
    return function(array) is array


def protected(np, array):
    array = array.copy()
    array.flags.writeable = False
    array.flags["W"] = True
    array[0] = 1
    array.flags["WRITEABLE"] = False
    array[0] = 2


def flat(array, key, value):
    array.flat[key] = value
    return array


def part(np, array, kth, axis=-1):
    """The elements at kth; the partition of the others is checked here, since any order of them is right."""
    partitioned, indices = np.partition(array, kth, axis), np.argpartition(array, kth, axis)
    ordered = np.sort(array, axis)
    for found in (
        partitioned,
        np.take_along_axis(array if axis is not None else array.ravel(), indices, -1 if axis is None else axis),
    ):
        found, wanted = (np.moveaxis(one, -1 if axis is None else axis, -1) for one in (found, ordered))
        assert np.array_equal(np.sort(found, -1), wanted, equal_nan=True)
        for k in [kth] if isinstance(kth, int) else kth:
            k %= found.shape[-1]
            assert np.array_equal(found[..., k], wanted[..., k], equal_nan=True)
            assert np.array_equal(np.sort(found[..., :k], -1), wanted[..., :k], equal_nan=True)
    copied = array.copy()
    if axis is not None:
        copied.partition(kth, axis)
        assert np.array_equal(np.sort(copied, axis), ordered, equal_nan=True)
    return np.take(ordered, kth, -1 if axis is None else axis)


def pads(row, widths, axis, options):
    row[: widths[0]] = 5
    row[len(row) - widths[1] :] = 7


def evaluated(np, expression, arrays):
    return eval(
        expression,
        {
            "np": np,
            "fill": fill,
            "flat": flat,
            "same_array": same_array,
            "protected": protected,
            "part": part,
            "pads": pads,
            **dict(zip(VALUES, arrays)),
        },
    )


def assert_near(got, wanted):
    if isinstance(wanted, (tuple, list)):
        assert type(got) is type(wanted)
        assert len(got) == len(wanted)
        for one, other in zip(got, wanted):
            assert_near(one, other)
    elif isinstance(wanted, (numpy.ndarray, numpy.generic)):
        assert described(got) == described(wanted)
        if wanted.dtype.kind in "fc":
            rough = {"float16": 1e-3, "float32": 2e-6, "complex64": 2e-6}.get(wanted.dtype.name, 1e-12)
            numpy.testing.assert_allclose(numpy.asarray(got), wanted, rough, rough * 10)
        else:
            numpy.testing.assert_array_equal(numpy.asarray(got), wanted)
    else:
        assert got == wanted
        assert type(got) is type(wanted)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@each(("subject", "expression"), CASES, ids=[expression for _, expression in CASES])
def test_expression(subject, expression):
    wanted, got = (
        outcome(np, lambda np, *arrays: evaluated(np, expression, arrays), VALUES.values())
        for np in (numpy, vmhost.engine.numpy)
    )
    if isinstance(wanted, Exception) or isinstance(got, Exception):
        if isinstance(got, Exception) and not isinstance(wanted, Exception):
            raise got
        assert isinstance(got, Exception), f"NumPy raised {wanted!r}"
        assert isinstance(wanted, type(got)) or type(wanted).__name__ == type(got).__name__, (wanted, got)
        return
    assert_near(got, wanted)


METHODS = [
    "linear",
    "lower",
    "higher",
    "midpoint",
    "nearest",
    "inverted_cdf",
    "averaged_inverted_cdf",
    "closest_observation",
    "interpolated_inverted_cdf",
    "hazen",
    "weibull",
    "median_unbiased",
    "normal_unbiased",
]


@each("method", METHODS)
def test_every_method_of_quantile(method):
    fractions = numpy.array([0.0, 0.05, 0.1, 0.25, 0.3333, 0.5, 0.6, 0.75, 0.9, 1.0])
    for size in (1, 2, 5, 10, 17):
        for values in (numpy.sort(random.normal(size=(3, size))), random.integers(0, 9, (3, size))):
            wanted = numpy.quantile(values, fractions, 1, method=method)
            got = vmhost.engine.numpy.quantile(
                vmhost.engine.numpy.array(values), vmhost.engine.numpy.array(fractions), 1, method=method
            )
            assert_near(got, wanted)
    holes = numpy.where(random.uniform(size=(4, 9)) > 0.7, numpy.nan, random.normal(size=(4, 9)))
    assert_near(
        vmhost.engine.numpy.nanquantile(
            vmhost.engine.numpy.array(holes), vmhost.engine.numpy.array(fractions), 1, method=method
        ),
        numpy.nanquantile(holes, fractions, 1, method=method),
    )


MEASURED = op_cases.surface_cases(1000)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@each("case", MEASURED, ids=[expression for expression, *_ in MEASURED])
def test_what_is_measured_gives_what_numpy_gives(case):
    _, _, function, operands = case
    wanted, got = (outcome(np, function, operands) for np in (numpy, vmhost.engine.numpy))
    if "partition" in case[0]:  # any order that has the right element in its place
        wanted, got = (
            (wanted[500], got[500]) if wanted.dtype == float else (operands[0][wanted[500]], operands[0][int(got[500])])
        )
    assert not isinstance(got, Exception), got
    assert_near(got, wanted)

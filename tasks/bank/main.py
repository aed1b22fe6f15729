"""A bank of FIR filters: sound split into octave bands, by windowed-sinc filters and overlap-save convolution in blocks."""

import engine.numpy as np

RATE, TAPS = 16000, 257


def low_pass(cutoff, taps=TAPS):
    """The impulse response that passes frequencies below `cutoff` (in cycles per sample), under a Blackman window."""
    n = np.arange(taps) - (taps - 1) / 2
    response = 2 * cutoff * np.sinc(2 * cutoff * n) * np.blackman(taps)
    return response / response.sum()


def octaves(lowest, count):
    """Filters for `count` octaves from `lowest` Hz up, one a row: differences of two low passes."""
    edges = lowest * 2.0 ** np.arange(count + 1) / RATE
    passes = np.stack([low_pass(edge) for edge in np.minimum(edges, 0.499)])
    return np.diff(passes, axis=0)


def chirp(seconds, start, stop):
    """A tone that rises from `start` to `stop` Hz, the same number of octaves in every second."""
    t = np.linspace(0, seconds, int(seconds * RATE), endpoint=False)
    growth = np.log(stop / start) / seconds
    return np.sin(2 * np.pi * start * np.expm1(growth * t) / growth)


def overlap_save(signal, filters, block=4096):
    """The signal through every filter, by transforms of `block` points: an array (filters, len(signal))."""
    taps = filters.shape[1]
    step = block - taps + 1
    count = -(-(len(signal) + taps - 1) // step)
    padded = np.zeros((count - 1) * step + block)
    padded[taps - 1 : taps - 1 + len(signal)] = signal
    places = np.arange(count)[:, None] * step + np.arange(block)
    spectra = np.fft.rfft(padded[places], axis=1)
    responses = np.fft.rfft(filters, n=block, axis=1)
    blocks = np.fft.irfft(spectra[None, :, :] * responses[:, None, :], n=block, axis=2)[:, :, taps - 1 :]
    return blocks.reshape(len(filters), -1)[:, : len(signal)]


def energies(bands, frame):
    """Mean power of each band in each frame, in decibels."""
    frames = bands[:, : bands.shape[1] // frame * frame].reshape(len(bands), -1, frame)
    return 10 * np.log10(np.maximum((frames**2).mean(axis=2), 1e-12))


def run(value):
    """{"seconds": s, "seed": n, "octaves": k} -> the bands' powers over time, and which band is loudest when."""
    seconds, count = value.get("seconds", 2.0), value.get("octaves", 6)
    random = np.random.Generator(np.random.Philox(value.get("seed", 0)))
    filters = octaves(100.0, count)
    signal = chirp(seconds, 100.0, 100.0 * 2.0**count)
    signal = signal + 0.01 * random.standard_normal(len(signal))
    bands = overlap_save(signal, filters)
    powers = energies(bands, RATE // 20)
    direct = np.convolve(signal[:2000], filters[0])[:2000]
    return {"powers": powers, "loudest": powers.argmax(axis=0), "difference": float(np.abs(bands[0, :2000] - direct).max()),
            "gain": np.abs(np.fft.rfft(filters, n=1024, axis=1)).max(axis=1)}

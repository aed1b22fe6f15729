"""A bank of FIR filters: sound split into octave bands, each at its own sample rate, and put together again.

Filters are windowed ideal responses; Kaiser's formula gives the window for a ripple and a transition width (Kaiser,
1974). The bank is a tree (Burt and Adelson's pyramid, 1983): at each level a low pass and decimation pass the lower
half on at half the rate; the residual is the upper octave. Polyphase filters avoid computing samples that are
discarded. Long signals are filtered in blocks (overlap-save). Welch spectra and the autocorrelation of the same sound
serve as a check.
"""

import vmhost.engine.numpy as np

RATE = 16000  # samples a second
RIPPLE = 80.0  # attenuation of the stop band, in decibels
TRANSITION = 0.04  # width of the transition, in cycles per sample
WINDOWS = ("rectangular", "bartlett", "hann", "hamming", "blackman")
LEAST = 1e-12  # power of silence


# ---- filters
def kaiser_order(ripple, width):
    """(taps, beta) of the Kaiser window for this ripple in decibels and this transition width in cycles per sample;
    taps are odd."""
    taps = int(np.ceil((ripple - 7.95) / (14.36 * width))) + 1
    if ripple > 50:
        beta = 0.1102 * (ripple - 8.7)
    elif ripple > 21:
        beta = 0.5842 * (ripple - 21) ** 0.4 + 0.07886 * (ripple - 21)
    else:
        beta = 0.0
    return taps | 1, beta


def window_of(kind, taps, beta=0.0):
    """A window by its name."""
    makers = {
        "hann": np.hanning,
        "hamming": np.hamming,
        "blackman": np.blackman,
        "bartlett": np.bartlett,
        "rectangular": np.ones,
    }
    return np.kaiser(taps, beta) if kind == "kaiser" else makers[kind](taps)


def low_pass(cutoff, window):
    """The impulse response that passes frequencies below `cutoff` (cycles per sample), with gain 1 at 0."""
    n = np.arange(len(window)) - (len(window) - 1) / 2
    response = 2 * cutoff * np.sinc(2 * cutoff * n) * window
    return response / response.sum()


def high_pass(cutoff, window):
    """The complement of a low pass: a centred pulse minus its response."""
    response = -low_pass(cutoff, window)
    response[len(response) // 2] += 1.0
    return response


def band_pass(low, high, window):
    """The difference of two low passes."""
    return low_pass(high, window) - low_pass(low, window)


def response_of(taps, points=1024):
    """(frequencies in cycles per sample, gain in decibels, group delay in samples) of a filter."""
    spectrum = np.fft.rfft(taps, n=points)
    weighted = np.fft.rfft(taps * np.arange(len(taps)), n=points)
    power = np.abs(spectrum) ** 2
    heard = power > LEAST
    delay = np.where(heard, (weighted * np.conj(spectrum)).real / np.where(heard, power, 1.0), 0.0)
    return np.fft.rfftfreq(points), 10 * np.log10(np.maximum(power, LEAST)), delay


def stop_band(taps, edge):
    """The highest gain, in decibels, at frequencies beyond `edge`."""
    frequencies, gain, _ = response_of(taps, 8192)
    return float(gain[frequencies >= edge].max())


# ---- filtering
def overlap_save(signal, taps, block=4096):
    """The filtered signal, by transforms of `block` points; as long as the signal, the filter's delay
    removed."""
    step, delay = block - len(taps) + 1, (len(taps) - 1) // 2
    count = -(-(len(signal) + delay) // step)
    padded = np.zeros((count - 1) * step + block)
    padded[len(taps) - 1 : len(taps) - 1 + len(signal)] = signal
    pieces = np.lib.stride_tricks.sliding_window_view(padded, block)[::step]
    filtered = np.fft.irfft(np.fft.rfft(pieces, axis=1) * np.fft.rfft(taps, n=block), n=block, axis=1)[
        :, len(taps) - 1 :
    ]
    return filtered.reshape(-1)[delay : delay + len(signal)]


def phases(taps, factor):
    """The polyphase parts (factor, n) of a filter: every `factor`-th tap, starting from each of the first `factor`."""
    padded = np.zeros(-(-len(taps) // factor) * factor)
    padded[: len(taps)] = taps
    return padded.reshape(-1, factor).T


def decimate(signal, taps, factor):
    """Every `factor`-th sample of the filtered signal, computed at the low rate; the delay is removed."""
    branches, delay = phases(taps, factor), (len(taps) - 1) // 2
    wanted = -(-len(signal) // factor)
    padded = np.zeros((wanted + branches.shape[1] + delay // factor + 1) * factor)
    padded[: len(signal)] = signal
    total = np.zeros(len(padded) // factor + branches.shape[1] - 1)
    for number, branch in enumerate(branches):  # sample n of part p is at n * factor - p
        phase = padded[::factor] if number == 0 else np.concatenate([[0.0], padded[factor - number :: factor][:-1]])
        total += np.convolve(phase, branch)
    # the filter's delay must be an integer at the low rate
    return total[delay // factor : delay // factor + wanted]


def interpolate(signal, taps, factor, length):
    """The signal at `factor` times the rate, `length` samples; each polyphase part computes every `factor`-th of
    them."""
    branches, delay = phases(factor * taps, factor), (len(taps) - 1) // 2
    filtered = np.stack([np.convolve(signal, branch) for branch in branches], axis=1).reshape(-1)
    filtered = np.concatenate([filtered, np.zeros(max(delay + length - len(filtered), 0))])
    return filtered[delay : delay + length]


# ---- the bank
class Bank:
    """`count` octaves, the highest first, and the residual below. Delays of filters are even, so that bands stay
    aligned."""

    def __init__(self, count, ripple=RIPPLE, width=TRANSITION):
        taps, beta = kaiser_order(ripple, width)
        taps += -(taps - 1) // 2 % 2 * 2  # (taps - 1) / 2 even
        self.count, self.low = count, low_pass(0.25 - width / 2, window_of("kaiser", taps, beta))

    def split(self, signal):
        """Bands, each at half the rate of the one before; the last is the residual. The upper octave is the difference
        between the signal and its lower half at the full rate, so `join` restores the signal."""
        bands = []
        for _ in range(self.count):
            lower = decimate(signal, self.low, 2)
            bands.append(signal - interpolate(lower, self.low, 2, len(signal)))
            signal = lower
        return [*bands, signal]

    def join(self, bands):
        """The signal of these bands."""
        signal = bands[-1]
        for band in reversed(bands[:-1]):
            signal = band + interpolate(signal, self.low, 2, len(band))
        return signal


def powers(bands, frames):
    """Mean power (bands, frames) of each band in each of `frames` time segments, in decibels."""
    rows = []
    for band in bands:
        edges = np.linspace(0, len(band), frames + 1).astype(np.int64)
        rows.append(np.add.reduceat(band**2, edges[:-1]) / np.diff(edges))
    return 10 * np.log10(np.maximum(np.stack(rows), LEAST))


# ---- other analyses of the same sound
def welch(signal, size, kind="hann"):
    """(frequencies in Hz, power density): periodograms of half-overlapping pieces under a window, averaged."""
    window = window_of(kind, size)
    pieces = np.lib.stride_tricks.sliding_window_view(signal, size)[:: size // 2]
    pieces = (pieces - pieces.mean(axis=1, keepdims=True)) * window
    density = (np.abs(np.fft.rfft(pieces, axis=1)) ** 2).mean(axis=0) / (RATE * np.square(window).sum())
    density[1 : -1 if size % 2 == 0 else None] *= 2
    return np.fft.rfftfreq(size, 1 / RATE), density


def pitches(signal, size, lowest, highest):
    """The pitch in Hz of each piece of `size` samples: the first strong peak of its autocorrelation, refined by a
    parabola."""
    pieces = signal[: len(signal) // size * size].reshape(-1, size)
    pieces = (pieces - pieces.mean(axis=1, keepdims=True)) * np.hanning(size)
    spectra = np.abs(np.fft.rfft(pieces, n=2 * size, axis=1)) ** 2
    own = np.fft.irfft(spectra, axis=1)[:, :size]
    own /= np.maximum(own[:, :1], LEAST)
    first, last = int(RATE / highest), min(int(RATE / lowest) + 1, size - 2)
    middle = own[:, first:last]
    peak = (middle > own[:, first - 1 : last - 1]) & (middle >= own[:, first + 1 : last + 1])
    peak &= middle > 0.6 * middle.max(axis=1, keepdims=True)
    lag = first + peak.argmax(axis=1)
    rows = np.arange(len(own))
    before, at, after = own[rows, lag - 1], own[rows, lag], own[rows, lag + 1]
    bend = before - 2 * at + after
    shift = np.where(np.abs(bend) > LEAST, 0.5 * (before - after) / np.where(np.abs(bend) > LEAST, bend, 1.0), 0.0)
    return RATE / (lag + np.clip(shift, -0.5, 0.5))


def chirp(seconds, start, stop):
    """A tone that rises from `start` to `stop` Hz by a constant number of octaves per second, with its second
    harmonic."""
    t = np.linspace(0, seconds, int(seconds * RATE), endpoint=False)
    growth = np.log(stop / start) / seconds
    phase = 2 * np.pi * start * np.expm1(growth * t) / growth
    return np.sin(phase) + 0.2 * np.sin(2 * phase + 0.5), start * np.exp(growth * t)


def run(value):
    """{"seconds": s, "seed": n, "octaves": k} makes a sound; {"sound": (n,), "octaves": k} takes one, at 16,000 samples
    a second.

    Returns the bands' powers over time (k + 1, frames), the loudest band, spectra, pitches, and the accuracy of filters
    and bank."""
    count, seconds = value.get("octaves", 6), value.get("seconds", 2.0)
    random = np.random.Generator(np.random.Philox(value.get("seed", 0)))
    if value.get("sound") is not None:
        signal, tone = np.asarray(value["sound"], dtype=np.float64), None
    else:
        signal, tone = chirp(seconds, 100.0, 3200.0)
        signal = signal + 0.01 * random.standard_normal(len(signal))
    bank = Bank(count)
    bands = bank.split(signal)
    frames = max(int(len(signal) / RATE * 20), 1)
    levels = powers(bands, frames)
    frequencies, density = welch(signal, 1024)
    heard = pitches(signal, 1024, 80.0, 4000.0)
    # checks: polyphase decimation against the full rate, blocks against a direct convolution, windows by name
    whole = overlap_save(signal, bank.low)
    direct = np.convolve(signal[:3000], bank.low, "same")
    middle = band_pass(0.05, 0.1, window_of("blackman", 129))
    answer = {
        "powers": levels,
        "loudest": levels.argmax(axis=0),
        "rebuilt": float(np.abs(bank.join(bands) - signal).max()),
        "by_parts": float(np.abs(decimate(signal, bank.low, 2) - whole[::2]).max()),
        "by_blocks": float(np.abs(whole[:2800] - direct[:2800]).max()),
        "stop_band": stop_band(bank.low, 0.25 + TRANSITION / 2),
        "stop_bands": np.array([stop_band(low_pass(0.2, window_of(kind, 101)), 0.25) for kind in WINDOWS]),
        "delay": response_of(middle)[2][51:102],
        "high": response_of(high_pass(0.2, window_of("hamming", 101)))[1][::64],
        "density": density,
        "centre": float((frequencies * density).sum() / density.sum()),
        "pitches": heard,
    }
    if tone is not None:
        wanted = tone[: len(heard) * 1024].reshape(-1, 1024).mean(axis=1)
        answer["pitch_error"] = float(np.median(np.abs(heard / wanted - 1)))
    return answer

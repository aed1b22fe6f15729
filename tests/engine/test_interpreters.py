"""The module in several subinterpreters at once, which simulate VMs."""

import concurrent.interpreters
import textwrap
from concurrent.futures import ThreadPoolExecutor


def run(source):
    interpreter = concurrent.interpreters.create()
    try:
        interpreter.exec(textwrap.dedent(source))
    finally:
        interpreter.close()


def test_an_interpreter_of_its_own_makes_and_drops_arrays():
    run("""
        import vmhost.engine.numpy as np
        from vmhost.engine import _array

        kept = [np.zeros((3, 4)) for _ in range(100)]
        assert kept[0].T.shape == (4, 3)
        assert np.array([[1, 2], [3, 4]]).tolist() == [[1, 2], [3, 4]]
        assert _array._statistics()["buffers"] == 100
        del kept
        assert _array._statistics()["live_bytes"] == 0
        np.kept = np.ones(5)                # ends with its interpreter
        np.weird = lambda: np.kept
    """)


def test_many_at_once():
    source = """
        import vmhost.engine.numpy as np
        for n in range(2000):
            a = np.zeros(n % 50) if n % 2 else np.array([float(n)] * 8)
            assert a.reshape(-1, 1).T.shape == (1, a.size)
    """
    with ThreadPoolExecutor(4) as pool:
        for future in [pool.submit(run, source) for _ in range(8)]:
            future.result()


def test_exceptions_and_dtypes_are_each_interpreters_own():
    run("""
        import vmhost.engine.numpy as np
        from vmhost.engine.numpy.exceptions import AxisError
        try:
            np.zeros((2, 2)).swapaxes(0, 2)
        except AxisError as error:
            assert isinstance(error, ValueError) and isinstance(error, IndexError)
            assert str(error) == "axis 2 is out of bounds for array of dimension 2"
        else:
            raise AssertionError("no error")
        assert np.zeros(1, "f4").dtype == np.float32 != np.float64
    """)

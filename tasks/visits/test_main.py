"""The task in plain Python, without a VM: `vmhost test FOLDER`."""

import unittest

from main import run


class Run(unittest.TestCase):
    def test_a_visit_becomes_a_row(self):
        events = [
            {"name": "page_enter", "time_ms": 1000, "contents": {"item": "lamp"}},
            {"name": "click", "time_ms": 1500, "contents": {}},
            {"name": "page_exit", "time_ms": 5200, "contents": None},
        ]
        row = {"shopper": "ann", "item": "lamp", "dwell_ms": 4200, "clicks": 1}
        self.assertEqual(run({"key": "ann", "events": events}), row)


if __name__ == "__main__":
    unittest.main()

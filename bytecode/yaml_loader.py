"""PyYAML's safe loader, whose errors of escapes have a line as its others do."""

import yaml


class Loader(yaml.SafeLoader):
    def scan_flow_scalar_non_spaces(self, double, start_mark):
        try:
            return super().scan_flow_scalar_non_spaces(double, start_mark)
        except ValueError as error:  # of chr()
            problem = 'expected an escape of a character, at most "\\U0010ffff"'
            raise yaml.scanner.ScannerError(None, None, problem, self.get_mark()) from error

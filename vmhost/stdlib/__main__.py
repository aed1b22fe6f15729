"""`python -m vmhost.stdlib OUT.vmb` builds the standard-library bundle."""

from vmhost.stdlib.build import main

if __name__ == "__main__":
    raise SystemExit(main())

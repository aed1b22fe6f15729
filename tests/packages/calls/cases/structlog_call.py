# requires: structlog
import structlog


def run(value):
    with structlog.testing.capture_logs() as said:
        structlog.get_logger().info("hello", user=1)
    return said

# requires: ftfy
import ftfy


def run(value):
    return [ftfy.fix_text("schÃ¶n â€” ok"), ftfy.formatting.monospaced_width("北京")]

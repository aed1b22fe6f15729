def run(v):
    pass

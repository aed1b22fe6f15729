"""`vmhost test`: the tests of several tasks, each with the `main` of its own."""

from vmhost.cli import failures


def test_each_task_is_tested_with_its_own_main(vmhost, tmp_path):
    for name in ("one", "two"):
        assert vmhost("init", tmp_path / name)[0] == 0
    main = tmp_path / "two" / "main.py"
    main.write_text(main.read_text().replace('"mean": sum', '"mean": 1 + sum'))
    code, out, _ = vmhost("test", tmp_path / "one", tmp_path / "two")
    assert code == failures.TASK_FAILED and f"{tmp_path / 'two'}: FAILED" in out and "one: passed" in out


def test_a_folder_without_task_or_tests_is_refused(vmhost, tmp_path):
    code, _, err = vmhost("test", tmp_path)
    assert code == failures.WRONG_INPUT and "it has no task.yaml" in err
    vmhost("init", tmp_path / "task")
    (tmp_path / "task" / "test_main.py").unlink()
    code, _, err = vmhost("test", tmp_path / "task")
    assert code == failures.WRONG_INPUT and "no test*.py in it" in err


def test_what_tests_print_may_be_no_text_and_how_their_process_ended_is_told(vmhost, tmp_path):
    for name, last in (
        ("raw", 'os.write(1, b"\\xff raw\\n")'),
        ("left", "os._exit(7)"),
        ("killed", "os.kill(os.getpid(), 9)"),
    ):
        assert vmhost("init", tmp_path / name)[0] == 0
        with open(tmp_path / name / "test_main.py", "a") as file:
            file.write(f"\nimport atexit, os\natexit.register(lambda: {last})\n")
    code, out, _ = vmhost("test", tmp_path / "raw", tmp_path / "left", tmp_path / "killed")
    assert code == failures.TASK_FAILED
    assert f"{tmp_path / 'raw'}: passed" in out and "\\xff raw" in out
    assert "left: FAILED, with status 7" in out and "killed: FAILED, ended by signal 9" in out

"""`make test` runs what has not passed in its present state, and only that."""


def test_second_call_is_quick_and_a_change_is_seen(project):
    project.write("01_page.ipynb", "assert 1 + 1 == 2")
    project.write("02_page.ipynb", "assert True")
    test = project.folder / "tests" / "test_sum.py"
    test.write_text("def test_sum():\n    assert 1 + 1 == 2\n")
    status, said = project.run("check")
    assert status == 0, said
    assert "0 passed before and unchanged, 2 to run" in said and "ok     test_sum.py" in said

    status, said = project.run("check")
    assert status == 0 and "ok  " not in said, said

    project.write("01_page.ipynb", "assert 1 + 1 == 3")
    status, said = project.run("check")
    assert status == 1 and "FAILED 01_page.ipynb" in said and "AssertionError" in said and "02_page" not in said

    project.write("01_page.ipynb", "assert 1 + 1 == 2", "#| slow\nassert False")
    test.write_text("def test_sum():\n    assert 1 + 1 == 3\n")
    status, said = project.run("check")
    assert status == 1 and "ok     01_page.ipynb" in said and "FAILED test_sum.py" in said

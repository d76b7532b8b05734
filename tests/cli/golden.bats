# Every case of tests/cli/cases prints what golden/ says, to the byte, and leaves no file behind.

setup_file() {
    load common
    cd "$BATS_FILE_TMPDIR"
    make_inputs
    ls -A >"$BATS_FILE_TMPDIR/../before"
}

@test "each case prints its golden text" {
    load common
    cd "$BATS_FILE_TMPDIR"
    failed=0
    total=0
    while IFS='|' read -r name words; do
        total=$((total + 1))
        show_case "$words" >case.got
        if ! diff -u "$TS_SOURCE_DIR/tests/cli/golden/$name.txt" case.got; then
            echo "case '$name': turbospark $words"
            failed=$((failed + 1))
        fi
    done < <(cases)
    echo "$failed of $total cases differ"
    [ "$total" -gt 100 ]
    [ "$failed" = 0 ]
}

@test "no case left a file" {
    cd "$BATS_FILE_TMPDIR"
    rm -f case.got case.out case.err
    diff "$BATS_FILE_TMPDIR/../before" <(ls -A)
}

@test "each golden text has its case, and its error is one line" {
    load common
    cd "$TS_SOURCE_DIR/tests/cli/golden"
    diff <(ls | sed 's/\.txt$//' | sort) <(cases | cut -d'|' -f1 | sort)
    for file in *.txt; do
        read -r _ code <"$file"
        lines=$(sed '1,/^--- stderr$/d' "$file" | wc -l)
        case $file in inspect-two-wrong.txt) want=2 ;; *) want=1 ;; esac
        [ "$code" = 0 ] || [ "$lines" = "$want" ] || { echo "$file: $lines lines on stderr"; false; }
    done
}

# Prints the programs and Python packages of an image, with one `kind name version` in each line.
# The arguments are the names of the programs. Any POSIX shell can run this script.
echo "shell sh -"
for program in "$@"; do
    command -v "$program" >/dev/null 2>&1 || continue
    case $program in
        python3) version=$(python3 -c 'import platform; print(platform.python_version())' 2>/dev/null) || continue ;;
        bash) version=$(bash -c 'echo ${BASH_VERSION%%(*}' 2>/dev/null) || continue ;;
        ffmpeg) version=$(ffmpeg -version 2>/dev/null | sed -n '1s/ffmpeg version \([^ ]*\).*/\1/p') ;;
        ssh | pdftotext) option=$([ "$program" = ssh ] && echo -V || echo -v)
            version=$("$program" "$option" 2>&1 | sed -n '1s/[^0-9]*\([0-9][0-9.]*\).*/\1/p') ;;
        *) version=$("$program" --version 2>/dev/null | sed -n '1s/[^0-9]*\([0-9][0-9.]*\).*/\1/p') ;;
    esac
    echo "program $program ${version:-?}"
done
command -v python3 >/dev/null 2>&1 && python3 - <<'PYTHON'
from importlib.metadata import distributions
for distribution in distributions():
    name = distribution.metadata["Name"]
    if name:
        print("package", name.lower(), distribution.version)
PYTHON

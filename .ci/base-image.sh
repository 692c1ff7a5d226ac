#!/usr/bin/env bash
# Makes the image our Dockerfile starts FROM without any registry of images: debootstrap, then import.
# Mirror, suites and apt's settings are the host's own, so what the host reaches the image reaches. Safe to call again.
#   BASE_IMAGE  tag to make (default: debian:bookworm-slim)
#   SUITE       Debian release (default: bookworm)
#   MIRROR      Debian mirror (default: where the host's apt gets SUITE from)
set -euo pipefail

image=${BASE_IMAGE:-debian:bookworm-slim}
suite=${SUITE:-bookworm}

if docker image inspect "$image" >/dev/null 2>&1; then
    echo "base image: $image is there"
    exit 0
fi

# Lines of "uri release component", of every Debian archive of this suite that the host's apt knows.
# shellcheck disable=SC2016  # apt-get fills these in
archives=$(apt-get indextargets --format '$(CREATED_BY) $(REPO_URI) $(RELEASE) $(COMPONENT)' 2>/dev/null |
    awk -v suite="$suite" '$1 == "Packages" && ($3 == suite || $3 == suite "-updates" || $3 == suite "-security") \
        && $4 == "main" { sub("/$", "", $2); print $2, $3, $4 }' | sort -u)
mirror=${MIRROR:-$(awk -v suite="$suite" '$2 == suite { print $1; exit }' <<<"$archives")}
[ -n "$mirror" ] || { echo "base image: the host's apt has no mirror of $suite; set MIRROR" >&2; exit 1; }

root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
echo "base image: bootstrapping $suite"
debootstrap --variant=minbase "$suite" "$root" "$mirror" >"$root.log" 2>&1 ||
    { tail -n 20 "$root.log" >&2; exit 1; }
rm -f "$root.log"

if [ -n "$archives" ]; then
    awk '{ print "deb", $1, $2, $3 }' <<<"$archives" >"$root/etc/apt/sources.list"
fi
apt-config dump | grep -E '^Acquire::(Check-Valid-Until|Check-Date|http|https|Retries)' |
    grep -v -E '::(SslKey|SslCert|CaInfo|User-Agent|Proxy)' >"$root/etc/apt/apt.conf.d/90host" || true
printf '%s\n' 'Acquire::Languages "none";' \
    'Acquire::GzipIndexes "true";' 'DPkg::Post-Invoke { "rm -f /var/cache/apt/archives/*.deb || true"; };' >"$root/etc/apt/apt.conf.d/80slim"

# What Debian's own slim images leave out: documentation, manual pages and translations.
cat >"$root/etc/dpkg/dpkg.cfg.d/slim" <<'DPKG'
path-exclude /usr/share/doc/*
path-include /usr/share/doc/*/copyright
path-exclude /usr/share/man/*
path-exclude /usr/share/info/*
path-exclude /usr/share/locale/*
path-include /usr/share/locale/locale.alias
DPKG
find "$root/usr/share/doc" -mindepth 2 ! -name copyright ! -type d -delete
find "$root/usr/share/doc" -type d -empty -delete
rm -rf "$root"/usr/share/{man,info,locale}/* "$root"/var/lib/apt/lists/* "$root"/var/cache/apt/*.bin \
    "$root"/var/cache/apt/archives/*.deb "$root"/var/cache/debconf/*-old "$root"/var/log/* "$root"/etc/resolv.conf \
    "$root"/etc/hostname
tar -C "$root" --numeric-owner --xattrs --exclude='./dev/*' --exclude='./proc/*' --exclude='./sys/*' -c . |
    docker import --change 'CMD ["bash"]' --change 'ENV LANG=C.UTF-8' - "$image" >/dev/null
echo "base image: made $image, $(docker image inspect --format '{{.Size}}' "$image" | numfmt --to=si)B"

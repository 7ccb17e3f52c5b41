# make demo    installs missing packages, builds, and runs memcached in an eighth of its memory
# make test    installs missing packages, and runs everything that CI runs
# make build   builds the command, its preload library, the daemon, the agent, the Valkey module, the
#              Python library, and the demo's load
# make module  builds the module for Valkey and Redis: target/release/libspillway_valkey.so
# make wheel   builds the Python package: target/wheels/spillway-*.whl
# make site    checks links and spelling of the pages and the OpenAPI document, and builds a site:
#              target/site/index.html
# make agent   builds the agent for guests, a static program: target/release/spillway-agent
# make window-client
#              builds a static program that tests the agent's windows: target/release/window-client
# make install PREFIX=/usr/local
#              builds and installs the command, the daemon, its service, manual pages and
#              completions; accepts DESTDIR
# make install-agent PREFIX=/usr
#              builds and installs the agent and its systemd unit into a guest; with DESTDIR into
#              its image
# make install-lib PREFIX=/usr/local
#              builds and installs the C library, its header and pkg-config file; accepts LIBDIR
# make install-module PREFIX=/usr/local
#              builds and installs the module for Valkey and Redis
# make uninstall PREFIX=/usr/local
#              stops the services and removes what the four targets above have installed; a configuration
#              that you have changed stays
# make image   builds a container image: target/image/spillway.tar
# make deb     builds Debian packages of the same files: target/deb/*.deb, and what they are made of:
#              target/deb/*.cdx.json
# make rpm     builds RPM packages of the same files: target/rpm/*.rpm, and what they are made of
# make sbom    writes a software bill of materials (CycloneDX) for each program: target/sbom/*.cdx.json

SHELL := /bin/bash
.SHELLFLAGS := -o pipefail -ec
export PATH := $(HOME)/.cargo/bin:$(CURDIR)/target/tools:$(PATH)

# The programs that demo, build and the end-to-end tests run. They are always built together, so that
# each reuses the others' build.
PROGRAMS := --package spillway --package spillway-preload --package spillwayd --package spillway-load --package spillway-valkey \
    --package spillway-python

.PHONY: demo test build module lib wheel site agent window-client install install-agent install-lib install-module uninstall deb rpm sbom image tools

demo: tools
	@lab/setup demo
	@cargo build --release --locked $(PROGRAMS)
	@lab/demo

test: tools
	@lab/setup test
	@.ci/cargo-deny || true
	@cargo xtask ci

build: tools agent window-client
	@cargo build --release --locked $(PROGRAMS)

module: tools
	@cargo build --release --locked --package spillway-valkey

lib: tools
	@cargo build --release --locked --package libspillway

MATURIN := 1.16.0

# maturin asks the installed Python for its file names; the package itself is for Python 3.11 and
# later.
wheel: tools
	@[ -x target/tools/maturin-$(MATURIN)/bin/maturin ] \
	    || python3 -m pip install --quiet --disable-pip-version-check --target target/tools/maturin-$(MATURIN) maturin==$(MATURIN)
	@target/tools/maturin-$(MATURIN)/bin/maturin build --release --locked --manifest-path clients/python/Cargo.toml --out target/wheels

MKDOCS := 1.6.1
CODESPELL := 2.4.3
OPENAPI := 0.9.0
PAGE_TOOLS := target/tools/mkdocs-$(MKDOCS)-codespell-$(CODESPELL)-openapi-$(OPENAPI)
PAGES := README.md ARCHITECTURE.md CHANGELOG.md CONTRIBUTING.md SECURITY.md docs

$(PAGE_TOOLS)/complete:
	@lab/setup site
	@rm -rf $(PAGE_TOOLS) && mkdir -p target/tools && /usr/bin/python3 -m venv $(PAGE_TOOLS)
	@$(PAGE_TOOLS)/bin/pip install --quiet --disable-pip-version-check mkdocs==$(MKDOCS) codespell==$(CODESPELL) \
	    openapi-spec-validator==$(OPENAPI) 2>$(PAGE_TOOLS)/log || \
	    { echo "make site: pip can't install mkdocs, codespell and openapi-spec-validator: $(PAGE_TOOLS)/log" >&2; exit 1; }
	@touch $@

site: $(PAGE_TOOLS)/complete
	@$(PAGE_TOOLS)/bin/codespell --ignore-words docs/words.txt --skip '*.svg,*.json,*.html,*.png' $(PAGES)
	@# On success it prints one line, which grep drops.
	@$(PAGE_TOOLS)/bin/openapi-spec-validator --validation-errors all docs/openapi.json | { grep -v ': OK$$' || true; }
	@rm -rf target/pages && mkdir -p target/pages && cp -r $(PAGES) target/pages/
	@# Not --quiet, which would hide warnings from --strict.
	@$(PAGE_TOOLS)/bin/mkdocs build --strict --config-file docs/mkdocs.yml 2>&1 | sed '/^INFO/d'

# The agent must run in any guest with any C library. A program for which ldd lists libraries is not
# static.
AGENT := target/release/spillway-agent

agent: tools
	@cargo rustc --release --locked --package spillway-agent --bin spillway-agent -- -C target-feature=+crt-static
	@! ldd $(AGENT) >/dev/null 2>&1 || ldd $(AGENT) | grep -q 'statically linked' || { echo "$(AGENT) is not static"; exit 1; }

# window-client must also run in any guest.
window-client: tools
	@cargo rustc --release --locked --package window-client -- -C target-feature=+crt-static

PREFIX ?= /usr/local

# Installed files have no debug information: it is most of each file.
STRIP := --strip --strip-program=packaging/strip

install: build
	install -D -m 755 $(STRIP) target/release/spillway $(DESTDIR)$(PREFIX)/bin/spillway
	install -D -m 755 $(STRIP) target/release/spillwayd $(DESTDIR)$(PREFIX)/bin/spillwayd
	install -D -m 644 $(STRIP) target/release/libspillway_preload.so \
	    $(DESTDIR)$(PREFIX)/lib/spillway/libspillway_preload.so
	install -d $(DESTDIR)$(PREFIX)/lib/systemd/system
	sed 's|/usr/bin/|$(PREFIX)/bin/|' packaging/systemd/spillwayd.service > $(DESTDIR)$(PREFIX)/lib/systemd/system/spillwayd.service
	install -m 644 packaging/systemd/spillwayd.socket $(DESTDIR)$(PREFIX)/lib/systemd/system/
	install -D -m 644 packaging/systemd/spillway.sysusers $(DESTDIR)$(PREFIX)/lib/sysusers.d/spillway.conf
	[ -e $(DESTDIR)/etc/spillway/spillwayd.toml ] || install -D -m 644 packaging/spillwayd.toml $(DESTDIR)/etc/spillway/spillwayd.toml
	install -d $(DESTDIR)$(PREFIX)/share/man/man1
	target/release/spillway man $(DESTDIR)$(PREFIX)/share/man/man1
	install -D -m 644 packaging/man/spillwayd.8 $(DESTDIR)$(PREFIX)/share/man/man8/spillwayd.8
	install -d $(DESTDIR)$(PREFIX)/share/man/man5
	target/release/spillwayd --document=man > $(DESTDIR)$(PREFIX)/share/man/man5/spillwayd.toml.5
	install -d $(DESTDIR)$(PREFIX)/share/bash-completion/completions $(DESTDIR)$(PREFIX)/share/zsh/site-functions \
	    $(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d
	target/release/spillway completions bash > $(DESTDIR)$(PREFIX)/share/bash-completion/completions/spillway
	target/release/spillway completions zsh > $(DESTDIR)$(PREFIX)/share/zsh/site-functions/_spillway
	target/release/spillway completions fish > $(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d/spillway.fish
	[ -n "$(DESTDIR)" ] || ! [ -d /run/systemd/system ] || { systemd-sysusers && systemctl daemon-reload; }

install-agent: agent
	install -D -m 755 $(STRIP) $(AGENT) $(DESTDIR)$(PREFIX)/bin/spillway-agent
	install -D -m 644 packaging/man/spillway-agent.8 $(DESTDIR)$(PREFIX)/share/man/man8/spillway-agent.8
	install -D -m 644 packaging/systemd/70-spillway-agent.rules $(DESTDIR)/usr/lib/udev/rules.d/70-spillway-agent.rules
	install -d $(DESTDIR)/etc/systemd/system
	sed 's|/usr/bin/|$(PREFIX)/bin/|' packaging/systemd/spillway-agent.service \
	    > $(DESTDIR)/etc/systemd/system/spillway-agent.service
	[ -n "$(DESTDIR)" ] || echo "restart the guest, or: systemctl daemon-reload; udevadm control --reload; udevadm trigger --subsystem-match=virtio-ports --action=add"

VERSION := $(shell sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml)

LIBDIR ?= $(PREFIX)/lib

install-lib: lib
	install -d $(DESTDIR)$(LIBDIR)/pkgconfig $(DESTDIR)$(PREFIX)/include
	install -m 755 $(STRIP) target/release/libspillway.so $(DESTDIR)$(LIBDIR)/libspillway.so.$(VERSION)
	ln -sf libspillway.so.$(VERSION) $(DESTDIR)$(LIBDIR)/libspillway.so.0
	ln -sf libspillway.so.0 $(DESTDIR)$(LIBDIR)/libspillway.so
	install -m 644 $(STRIP) target/release/libspillway.a $(DESTDIR)$(LIBDIR)/
	install -m 644 clients/c/include/spillway.h $(DESTDIR)$(PREFIX)/include/
	sed 's|@PREFIX@|$(PREFIX)|; s|@LIBDIR@|$(LIBDIR)|; s|@VERSION@|$(VERSION)|' clients/c/spillway.pc.in \
	    > $(DESTDIR)$(LIBDIR)/pkgconfig/spillway.pc
	[ -n "$(DESTDIR)" ] || ldconfig || echo "run ldconfig as root, or set LD_LIBRARY_PATH=$(LIBDIR)"

# This installs the module that make build builds. make module enables fewer features of the same
# crates, so cargo would rebuild them.
# The servers load a file only if it is executable.
install-module: build
	install -D -m 755 $(STRIP) target/release/libspillway_valkey.so $(DESTDIR)$(PREFIX)/lib/spillway/libspillway_valkey.so

UNITS := $(DESTDIR)$(PREFIX)/lib/systemd/system/spillwayd.socket $(DESTDIR)$(PREFIX)/lib/systemd/system/spillwayd.service \
    $(DESTDIR)/etc/systemd/system/spillway-agent.service
CONFIGURATION := $(DESTDIR)/etc/spillway/spillwayd.toml

# lab/tests/installed checks that nothing is left of the install targets. The user stays, as the owner of what the
# administrator keeps.
uninstall:
	[ -n "$(DESTDIR)" ] || ! [ -d /run/systemd/system ] || \
	    for unit in $(UNITS); do ! [ -e $$unit ] || systemctl --quiet disable --now $${unit##*/} || exit 1; done
	rm -f $(UNITS) $(DESTDIR)$(PREFIX)/bin/{spillway,spillwayd,spillway-agent} $(DESTDIR)$(PREFIX)/lib/sysusers.d/spillway.conf \
	    $(DESTDIR)/usr/lib/udev/rules.d/70-spillway-agent.rules \
	    $(DESTDIR)$(PREFIX)/lib/spillway/libspillway_{preload,valkey}.so $(DESTDIR)$(LIBDIR)/libspillway.{a,so,so.*} \
	    $(DESTDIR)$(LIBDIR)/pkgconfig/spillway.pc $(DESTDIR)$(PREFIX)/include/spillway.h \
	    $(DESTDIR)$(PREFIX)/share/man/man1/spillway{,-*}.1 $(DESTDIR)$(PREFIX)/share/man/man5/spillwayd.toml.5 \
	    $(DESTDIR)$(PREFIX)/share/man/man8/spillway{d,-agent}.8 $(DESTDIR)$(PREFIX)/share/bash-completion/completions/spillway \
	    $(DESTDIR)$(PREFIX)/share/zsh/site-functions/_spillway $(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d/spillway.fish
	! cmp -s packaging/spillwayd.toml $(CONFIGURATION) || rm $(CONFIGURATION)
	! [ -e $(CONFIGURATION) ] || echo "$(CONFIGURATION) stays, because you have changed it"
	for folder in $(DESTDIR)$(PREFIX)/lib/spillway $(DESTDIR)/etc/spillway; do \
	    ! [ -d $$folder ] || rmdir --ignore-fail-on-non-empty $$folder; done
	[ -n "$(DESTDIR)" ] || ldconfig || true
	[ -n "$(DESTDIR)" ] || ! [ -d /run/systemd/system ] || { rm -rf /run/spillway && systemctl daemon-reload; }

DEB := target/deb
# To test an upgrade, set a higher version.
DEB_VERSION := $(VERSION)

image: tools
	@lab/setup image
	@packaging/image $(VERSION) target/image/spillway.tar

# dpkg writes the packages beside the folder in which it builds them.
deb: tools
	@lab/setup deb
	@rm -rf $(DEB) && mkdir -p $(DEB)/build && cp -r packaging/debian $(DEB)/build/
	@printf 'spillway (%s) unstable; urgency=medium\n\n  * Built by make deb; CHANGELOG.md says what is new.\n\n -- %s  %s\n' \
	    '$(DEB_VERSION)' "$$(sed -n 's/^Maintainer: //p' packaging/debian/control)" \
	    "$$(git log -1 --format=%cD 2>/dev/null || date -R)" > $(DEB)/build/debian/changelog
	@cd $(DEB)/build && SPILLWAY_SOURCE=$(CURDIR) dpkg-buildpackage --build=binary --no-sign
	@$(MAKE) --no-print-directory sbom && cp target/sbom/*.cdx.json $(DEB)/

CYCLONEDX := 0.5.9

# Of crates.io, built once: the packages are built by a release, not by each CI run.
sbom: tools
	@[ -x target/tools/cyclonedx-$(CYCLONEDX)/bin/cargo-cyclonedx ] || \
	    cargo install --quiet --debug --locked --root target/tools/cyclonedx-$(CYCLONEDX) cargo-cyclonedx@$(CYCLONEDX)
	@rm -rf target/sbom
	@PATH=$(CURDIR)/target/tools/cyclonedx-$(CYCLONEDX)/bin:$$PATH packaging/sbom target/sbom

RPM := target/rpm
RPM_VERSION := $(VERSION)

rpm: tools build lib
	@lab/setup rpm
	@packaging/rpm '$(RPM_VERSION)' $(RPM)
	@$(MAKE) --no-print-directory sbom && cp target/sbom/*.cdx.json $(RPM)/

# A C compiler and linker, and the Rust version in rust-toolchain.toml.
tools:
	@command -v cc >/dev/null || { apt-get update -qq && apt-get install -y -qq --no-install-recommends build-essential; }
	@command -v cargo >/dev/null || { \
	    command -v curl >/dev/null || { apt-get update -qq && apt-get install -y -qq --no-install-recommends curl ca-certificates; }; \
	    curl --proto '=https' --tlsv1.2 -sSf https://static.rust-lang.org/rustup/rustup-init.sh | sh -s -- -y --profile minimal --default-toolchain none; }

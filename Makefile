# Skiff: build, try, test, install. `make help` lists the targets.

PREFIX     ?= /usr/local
SYSCONFDIR ?= /etc
DESTDIR    ?=

OUT        := $(or $(CARGO_TARGET_DIR),target)
BIN        := $(DESTDIR)$(PREFIX)/bin
LIBEXEC    := $(DESTDIR)$(PREFIX)/libexec/skiff
PLUGIN     := $(DESTDIR)$(PREFIX)/lib/skiff
MAN        := $(DESTDIR)$(PREFIX)/share/man
SHARE      := $(DESTDIR)$(PREFIX)/share
CONFIG     := $(DESTDIR)$(SYSCONFDIR)/skiff
# Debian's zsh looks for what packages bring elsewhere than others' do; both look into /usr/local/share/zsh/site-functions.
ZSH        := $(SHARE)/zsh/$(if $(and $(filter /usr,$(PREFIX)),$(wildcard /etc/debian_version)),vendor-completions,site-functions)
DOC        := $(DESTDIR)$(PREFIX)/share/doc/skiff
UNITS      := $(DESTDIR)$(PREFIX)/lib/systemd/system

.PHONY: all build man demo test unit-tests end-to-end-tests lint deps install uninstall stage clean help

all: build

help:
	@echo 'make            release build: $(OUT)/release/{skiff,skiff-helper,libskiff_spank.so}'
	@echo 'make demo       two Slurm nodes on this machine and a user who works on them (as root)'
	@echo 'make test       every test (as root: those of the test bed need it)'
	@echo 'make unit-tests, make end-to-end-tests    the two halves of these'
	@echo 'make lint       formatting, clippy, documentation, licences, crates, modules, words'
	@echo 'make deps       install the Debian packages that the above need (as root)'
	@echo 'make install    into DESTDIR=$(DESTDIR) PREFIX=$(PREFIX), configuration into SYSCONFDIR=$(SYSCONFDIR)'
	@echo 'make uninstall  the reverse; leaves a configuration that was changed'

build:
	@packaging/build

# Man pages and completions are printed by skiff itself, so they cannot disagree with it.
# Whoever installs, as root, need not be the one who has Rust.
man:
	@if command -v cargo >/dev/null; then \
	    packaging/build && $${SKIFF_XTASK:-cargo --locked xtask} man --skiff $(OUT)/release/skiff --out $(OUT)/generated; \
	elif [ ! -e $(OUT)/generated/man/skiff.1 ]; then \
	    echo 'make man: no cargo in PATH' >&2; echo 'hint: make man as the user who has Rust, then make install' >&2; exit 1; \
	fi

demo: deps build
	@demo/demo.sh

test: build unit-tests end-to-end-tests

unit-tests:
	@# For the tests of its client, and then for `stage`. It says itself why there is none.
	@packaging/get-criu $(OUT)/criu || true
	cargo test --locked --workspace

end-to-end-tests: build
	tests/run

lint:
	@.ci/lint

# Root on Debian installs; anyone else is told what is missing, if anything is.
deps:
	@packaging/install-debian-packages

# The helper is setuid root: only root can give it that owner, so anyone else's DESTDIR wants fakeroot.
install: man
	install -d $(BIN) $(LIBEXEC) $(PLUGIN) $(MAN)/man1 $(MAN)/man5 $(CONFIG) $(DOC) \
	    $(SHARE)/bash-completion/completions $(ZSH) $(SHARE)/fish/vendor_completions.d
	install -m 755 $(OUT)/release/skiff $(BIN)/skiff
	ln -sf skiff $(BIN)/skiff-oci
	install -m 755 $(OUT)/release/skiff-helper $(LIBEXEC)/skiff-helper
	@if [ "$$(id -u)" = 0 ]; then \
	    echo 'chown 0:0 + chmod 4755 $(LIBEXEC)/skiff-helper'; \
	    chown 0:0 $(LIBEXEC)/skiff-helper && chmod 4755 $(LIBEXEC)/skiff-helper; \
	else \
	    echo 'make install: not root: $(LIBEXEC)/skiff-helper is not setuid, environments will be rootless' >&2; \
	    echo 'hint: make install as root, or under fakeroot for a package' >&2; \
	fi
	install -m 644 $(OUT)/release/libskiff_spank.so $(PLUGIN)/skiff_spank.so
	install -m 644 $(OUT)/generated/man/*.1 $(MAN)/man1/
	install -m 644 packaging/man/skiff-config.5 $(MAN)/man5/
	install -m 644 $(OUT)/generated/completion/skiff.bash $(SHARE)/bash-completion/completions/skiff
	install -m 644 $(OUT)/generated/completion/_skiff $(ZSH)/_skiff
	install -m 644 $(OUT)/generated/completion/skiff.fish $(SHARE)/fish/vendor_completions.d/skiff.fish
	install -m 755 packaging/make-store $(LIBEXEC)/make-store
	@# No part of ours, and all but checkpoints works without it; why it is missing has been said then.
	@if packaging/get-criu $(OUT)/criu; then \
	    echo 'installing CRIU into $(LIBEXEC)/criu'; \
	    rm -rf $(LIBEXEC)/criu && cp -R $(OUT)/criu $(LIBEXEC)/criu; \
	else \
	    echo 'make install: without CRIU: no checkpoints' >&2; \
	fi
	install -m 644 packaging/config.toml docs/install.md docs/coming-from.md docs/oci-runtime.md docs/json.md docs/json.schema.json docs/edf.schema.json $(DOC)/
	install -d $(DOC)/modules
	install -m 644 docs/modules.md packaging/modules/*.toml $(DOC)/modules/
	install -d $(UNITS)
	sed 's|@PREFIX@|$(PREFIX)|g' packaging/systemd/skiff-agent.service >$(UNITS)/skiff-agent.service
	sed 's|@PREFIX@|$(PREFIX)|g' packaging/sshd_config.skiff >$(DOC)/sshd_config.skiff
	install -m 644 packaging/pam.d/skiff $(DOC)/pam-skiff
	sed 's|@PREFIX@|$(PREFIX)|g' packaging/plugstack.conf.d/skiff.conf >$(DOC)/plugstack-skiff.conf
	sed 's|@PREFIX@|$(PREFIX)|g' packaging/apparmor/skiff >$(DOC)/apparmor-skiff
	@if [ -e $(CONFIG)/config.toml ]; then \
	    echo 'keeping $(CONFIG)/config.toml; the sample is $(DOC)/config.toml'; \
	else \
	    install -m 644 packaging/config.toml $(CONFIG)/config.toml; \
	fi
	@# A package does this where it is installed.
	@if [ "$$(id -u)" = 0 ] && [ -z '$(DESTDIR)' ]; then $(LIBEXEC)/make-store; fi

uninstall:
	rm -f $(BIN)/skiff $(BIN)/skiff-oci $(LIBEXEC)/skiff-helper $(LIBEXEC)/make-store $(PLUGIN)/skiff_spank.so $(MAN)/man1/skiff.1 $(MAN)/man1/skiff-*.1 \
	    $(MAN)/man5/skiff-config.5 \
	    $(SHARE)/bash-completion/completions/skiff $(ZSH)/_skiff \
	    $(SHARE)/fish/vendor_completions.d/skiff.fish
	@if cmp -s $(CONFIG)/config.toml $(DOC)/config.toml; then rm -f $(CONFIG)/config.toml; \
	elif [ -e $(CONFIG)/config.toml ]; then echo 'keeping $(CONFIG)/config.toml: it was changed'; fi
	rm -rf $(LIBEXEC)/criu
	rm -f $(UNITS)/skiff-agent.service
	rm -f $(DOC)/config.toml $(DOC)/sshd_config.skiff $(DOC)/pam-skiff $(DOC)/install.md $(DOC)/plugstack-skiff.conf $(DOC)/apparmor-skiff \
	    $(DOC)/coming-from.md $(DOC)/oci-runtime.md $(DOC)/json.md $(DOC)/json.schema.json $(DOC)/edf.schema.json
	@for directory in $(LIBEXEC) $(PLUGIN) $(DOC) $(CONFIG); do \
	    [ ! -d $$directory ] || rmdir --ignore-fail-on-non-empty $$directory; done

# What the test bed, the demo and the benchmarks install for as long as they run: our packages' layout, the plug-in on.
STAGE := $(OUT)/stage
stage:
	@rm -rf $(STAGE)
	@$(MAKE) --no-print-directory --silent install DESTDIR=$(abspath $(STAGE)) PREFIX=/usr SYSCONFDIR=/etc
	@install -D -m 644 $(STAGE)/usr/share/doc/skiff/plugstack-skiff.conf $(STAGE)/etc/slurm/plugstack.conf.d/skiff.conf

clean:
	cargo clean

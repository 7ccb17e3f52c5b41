# Sourced by the guest tests: a Debian kernel with busybox under QEMU (TCG), whose RAM is paged.
. "$(dirname "${BASH_SOURCE[0]}")/lab.sh"
FILES=8 FILE_MIB=32

# The guest fills most of its memory with files and sums them twice.
make_initramfs() {
    local root=$WORK/root
    mkdir -p "$root/bin"
    cp /usr/bin/busybox "$root/bin/busybox"
    gcc -O2 -static -o "$root/bin/pattern" "$LAB/tools/pattern.c" || fail "pattern.c does not build"
    cat >"$root/init" <<SH
#!/bin/busybox sh
/bin/busybox mkdir -p /proc /dev /files
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t tmpfs -o size=90% files /files
cd /files
for file in \$(seq $FILES); do pattern \$file $FILE_MIB \$file || echo GUEST failed; done
md5sum * | sed 's/^/GUEST /'
md5sum * | sed 's/^/GUEST /'
echo GUEST done
reboot -f
SH
    chmod +x "$root/init"
    (cd "$root" && find . | cpio -o -H newc --quiet | gzip -1) >"$WORK/initramfs"
}

# What the guest must say.
expected() {
    mkdir "$WORK/files"
    local file
    for file in $(seq $FILES); do
        "$BUILT/pattern" "$WORK/files/$file" $FILE_MIB "$file" || fail "pattern"
    done
    (cd "$WORK/files" && md5sum -- *) | sed 's/^/GUEST /' >"$WORK/sums"
    rm -r "$WORK/files"
    cat "$WORK/sums" "$WORK/sums" - <<<"GUEST done"
}

# guest_in LOCAL QEMU_OPTION...: boots it with 384 MiB in LOCAL; every sum must be right.
#
# One thread runs both processors. With a thread each, TCG drops what it has translated of code before the guest's store that patches
# the code. A store that waits for its page leaves time to translate the old code again, and the guest ends in "Oops: int3".
guest_in() {
    local size=$1
    shift
    ls "$LAB"/cache/kernel/boot/vmlinuz-* >/dev/null || fail "no guest kernel: run lab/setup guest"
    make_initramfs
    expected >"$WORK/expected"
    paged "$size" qemu-system-x86_64 -accel tcg,thread=single -cpu max -smp 2 -m 384M "$@" \
        -nodefaults -nographic -no-reboot -serial stdio \
        -kernel "$(ls "$LAB"/cache/kernel/boot/vmlinuz-* | tail -n 1)" -initrd "$WORK/initramfs" \
        -append 'console=ttyS0 panic=-1 quiet mitigations=off' </dev/null >"$WORK/console"
    local status=$?
    [ $status = 0 ] || { tail -n 30 "$WORK/console"; fail "QEMU ended with $status"; }
    tr -d '\r' <"$WORK/console" | grep -o 'GUEST.*' >"$WORK/said"
    diff "$WORK/expected" "$WORK/said" || { tail -n 30 "$WORK/console"; fail "the guest's sums are wrong"; }
    went_far 49152
}

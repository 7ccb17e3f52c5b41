# Sourced by tests of a stock kernel's network clients: a Debian guest under QEMU (TCG), whose 10.0.2.2 is this host's
# loopback. Its programs lie on a disk, so that they take none of its memory.
. "$(dirname "${BASH_SOURCE[0]}")/lab.sh"
PROGRAMS=(/usr/sbin/nvme /usr/sbin/nbd-client /usr/bin/fio /usr/sbin/mkfs.ext4)
# Of lab/tools.
TOOLS=(hog)
MODULES=(virtio_pci virtio_net virtio_blk ext4 crc32c_generic nvme-tcp nbd hmac sha256_generic sha512_generic dh_generic)

# The folder of the guest's kernel, unless the caller has set it. LAB_KERNEL=kernel-release is the Debian release's own.
KERNEL=${KERNEL:-$LAB/cache/${LAB_KERNEL:-kernel}}

# LAB_QEMU=10.0 is the QEMU that lab/setup qemu fetches, else the one that is installed.
QEMU=(qemu-system-x86_64)
if [ "${LAB_QEMU:-7.2}" = 10.0 ]; then
    from=$LAB/cache/qemu-10/usr
    QEMU=("$from/bin/qemu-system-x86_64" -L "$from/share/qemu" -L "$from/share/seabios")
fi

# The kernel's modules, uncompressed, as far as the guest needs them: guest_modules ROOT.
guest_modules() {
    local root=$1 kernel=$KERNEL version module
    version=$(basename "$(ls -d "$kernel"/lib/modules/*)")
    local from=$kernel/lib/modules/$version to=$root/lib/modules/$version
    local all=$WORK/modules
    mkdir -p "$all/lib/modules/$version" "$to"
    ln -s "$from/kernel" "$all/lib/modules/$version/kernel"
    cp "$from"/modules.{order,builtin,builtin.modinfo} "$all/lib/modules/$version/"
    depmod -b "$all" "$version" || fail "depmod"
    for module in "${MODULES[@]}"; do
        modprobe -d "$all" -S "$version" --show-depends "$module" | sed -n 's/^insmod \([^ ]*\).*/\1/p'
    done | sort -u | while read -r path; do
        local place=$to/${path#"$all/lib/modules/$version/"}
        mkdir -p "$(dirname "$place")"
        case $path in
        *.xz) xz -dc "$path" >"${place%.xz}" ;;
        *) cp "$path" "$place" ;;
        esac
    done
    cp "$from"/modules.{order,builtin,builtin.modinfo} "$to/"
    depmod -b "$root" "$version" || fail "depmod"
}

# The initial file system: busybox, modules, tools of the lab, and init, which runs $WORK/script.
make_network_initramfs() {
    local root=$WORK/root
    mkdir -p "$root"/{bin,proc,sys,dev,tmp,run,tools,etc/nvme,lib64}
    cp /usr/bin/busybox "$root/bin/busybox"
    local tool
    for tool in "${TOOLS[@]}"; do
        gcc -O2 -static -o "$root/bin/$tool" "$LAB/tools/$tool.c" || fail "$tool.c does not build"
    done
    guest_modules "$root"
    echo nqn.2014-08.org.nvmexpress:uuid:3f5d62d6-2e40-4f7a-9d3e-0d2bb6b7a001 >"$root/etc/nvme/hostnqn"
    echo 3f5d62d6-2e40-4f7a-9d3e-0d2bb6b7a001 >"$root/etc/nvme/hostid"
    printf 'nbd\t10809/tcp\n' >"$root/etc/services"
    cp "$1" "$root/script"
    cat >"$root/init" <<'SH'
#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/tools/bin:/bin LD_LIBRARY_PATH=/tools/lib
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mount -t tmpfs tmp /tmp
for module in virtio_pci virtio_net virtio_blk ext4 crc32c_generic; do modprobe $module; done
mount -t ext4 -o ro /dev/vda /tools && ln -s /tools/lib/ld-linux-x86-64.so.2 /lib64/
ip link set lo up; ip link set eth0 up; ip addr add 10.0.2.15/24 dev eth0; ip route add default via 10.0.2.2
# wait_for SECONDS COMMAND...
wait_for() {
    local left=$(($1 * 5)); shift
    while ! "$@" >/dev/null 2>&1; do left=$((left - 1)); [ $left -gt 0 ] || return 1; sleep 0.2; done
}
die() { echo "GUEST failed: $*"; dmesg | tail -n 15; poweroff -f; }
say() { echo "GUEST $*"; }
. /script
say done
poweroff -f
SH
    chmod +x "$root/init"
    (cd "$root" && find . | cpio -o -H newc --quiet | gzip -1) >"$WORK/initramfs"
}

# A disk with the programs and their libraries.
make_tools_disk() {
    local root=$WORK/tools program library
    mkdir -p "$root"/{bin,lib}
    for program in "${PROGRAMS[@]}"; do
        cp "$program" "$root/bin/" || fail "no $program: run lab/setup guest"
        ldd "$program" | grep -o '/[^ ]*' | while read -r library; do cp -Ln "$library" "$root/lib/"; done
    done
    truncate -s 160M "$WORK/tools.img"
    mke2fs -q -t ext4 -d "$root" "$WORK/tools.img" || fail "mke2fs"
    rm -r "$root"
}

# serve CAPACITY: a spillwayd on $WORK/config, in $WORK/daemon; $PORT is a free port for the file to name.
PORT=$(/usr/bin/python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
serve() {
    start_daemon "$1"
    trap 'stop_daemon; finish' EXIT
}
start_daemon() {
    "$SPILLWAY" serve --dir "$WORK/daemon" --capacity "$1" --config "$WORK/config" >>"$WORK/served" 2>&1 &
    echo $! >"$WORK/serving"
    until_true 10 daemon stat || fail "the daemon did not start: $(cat "$WORK/served")"
}

# stop_daemon: ends it, and its store with it.
stop_daemon() {
    kill "$(cat "$WORK/serving")" 2>/dev/null
    until_true 20 is_stopped || echo "the daemon does not end: $(cat "$WORK/served")" >&2
}
is_stopped() { ! kill -0 "$(cat "$WORK/serving")" 2>/dev/null; }

# daemon COMMAND...: asks the daemon.
daemon() {
    "$SPILLWAY" "$@" --api "$WORK/daemon/api.sock"
}

daemon_pid() { daemon stat -o json | /usr/bin/python3 -c 'import json, sys; print(json.load(sys.stdin)["version"]["pid"])'; }

# attend FUNCTION: calls it with each line that the guest says.
attend() {
    local line
    tail --pid=$$ -f -n +1 --retry "$WORK/console" 2>/dev/null | grep --line-buffered -o $'GUEST[^\r]*' | while read -r line; do
        "$1" "$line"
    done
}

# watch_daemon: writes down the daemon's resident memory in KiB at each thing that the guest says, which waits a
# little around them.
watch_daemon() {
    local pid stage
    pid=$(daemon_pid)
    while sleep 0.5; do
        stage=$(tr -d '\r' 2>/dev/null <"$WORK/console" | grep -o 'GUEST [a-z]*' | tail -n 1 | cut -d ' ' -f 2)
        echo "$stage $(sed -n 's/^VmRSS:[^0-9]*\([0-9]*\).*/\1/p' "/proc/$pid/status" 2>/dev/null)"
    done >"$WORK/stages"
}
least() { awk -v stage="$1" '$1 == stage && (least == "" || $2 < least) { least = $2 } END { print least + 0 }' "$WORK/stages"; }
most() { awk -v stage="$1" '$1 == stage && $2 > most { most = $2 } END { print most + 0 }' "$WORK/stages"; }

# network_guest MIB SCRIPT: boots a guest with so much memory and a processor like $CPU (default Nehalem) that runs SCRIPT; what it says with `say` goes to
# $WORK/said. Fails unless the script came to its end.
network_guest() {
    local mib=$1 script=$2
    ls "$KERNEL"/boot/vmlinuz-* >/dev/null || fail "no guest kernel: run lab/setup guest"
    make_network_initramfs "$script"
    make_tools_disk
    "${QEMU[@]}" -accel tcg,thread=multi -cpu "${CPU:-Nehalem}" -smp 1 -m "${mib}M" -nodefaults -nographic -no-reboot \
        -serial stdio -netdev user,id=net -device virtio-net-pci,netdev=net \
        -drive "file=$WORK/tools.img,if=virtio,format=raw,readonly=on" \
        -kernel "$(ls "$KERNEL"/boot/vmlinuz-* | tail -n 1)" -initrd "$WORK/initramfs" \
        -append 'console=ttyS0 panic=-1 quiet mitigations=off no_timer_check' </dev/null >"$WORK/console"
    tr -d '\r' <"$WORK/console" | grep -o 'GUEST.*' >"$WORK/said"
    cat "$WORK/said"
    if ! grep -qx 'GUEST done' "$WORK/said"; then
        tail -n 40 "$WORK/console"
        fail "the guest did not come to its end"
    fi
}

//! What a manual page says beyond the command line's definition: exit status, examples, related pages.

/// Exit codes, each with its meaning.
type Codes = &'static [(&'static str, &'static str)];
/// Command lines, each with what it is for.
type Examples = &'static [(&'static str, &'static str)];
/// Pages by name and section.
type Pages = &'static [(&'static str, char)];

/// The sections of one page.
pub struct Sections {
    /// The command, such as `spillway client add`.
    command: &'static str,
    pub exit: Codes,
    pub examples: Examples,
    /// Related pages, besides those about its own commands and the command that it belongs to.
    pub see: Pages,
}

/// The sections of the page about a command.
pub fn of(command: &str) -> Option<&'static Sections> {
    SECTIONS.iter().find(|sections| sections.command == command)
}

const DONE: (&str, &str) = ("0", "Done.");
const FAILED: (&str, &str) = ("1", "Failed on the way.");
const REFUSED: (&str, &str) = (
    "2",
    "The input is wrong, or the daemon refused. One line on standard error gives the reason.",
);
const WRONG: (&str, &str) =
    ("2", "The input is wrong. One line on standard error gives the reason.");
const UNREACHABLE: (&str, &str) = ("3", "No daemon answers.");

/// Of commands that ask a daemon.
const ASKS: Codes = &[DONE, FAILED, REFUSED, UNREACHABLE];
/// Of commands that ask nobody.
const ALONE: Codes = &[DONE, FAILED, WRONG];
/// Of commands that change a guest's size.
const RESIZES: Codes = &[
    ("0", "The guest has the new size."),
    ("1", "The size was not reached in time, or the command failed on the way."),
    REFUSED,
    UNREACHABLE,
];
const DOCTOR: Codes = &[
    ("0", "spillway run works here."),
    ("1", "Something that spillway run needs is missing. The output names it and the cure."),
    WRONG,
];
const RUN: Codes = &[
    (
        "the program's",
        "The program ran. If a signal ended it, so does the same signal spillway run.",
    ),
    ("1", "Failed on the way, or the program itself ended with 1."),
    ("2", "The program was not started: the input is wrong, or this machine can't page it."),
    ("126", "The program exists, but can't be executed."),
    ("127", "The program does not exist."),
];
const SERVE: Codes = &[
    ("0", "A signal asked the daemon to end."),
    ("1", "The daemon failed."),
    (
        "2",
        "The options or the configuration are wrong. One line on standard error gives the reason.",
    ),
    ("127", "The program spillwayd is missing."),
];
const GUEST_MEMORY: Codes = &[
    ("0", "The guest has ended, or the command released it after SIGTERM or SIGINT."),
    ("1", "Failed on the way, or the guest was killed because its pages could not be served."),
    ("2", "The input is wrong, or this machine can't page the guest."),
];
const ALL: Codes = &[
    DONE,
    FAILED,
    REFUSED,
    UNREACHABLE,
    ("other", "spillway run ends as its program does; see its page."),
];

const DAEMON: Pages = &[("spillwayd", '8'), ("spillwayd.toml", '5')];
const NONE: Pages = &[];

const SECTIONS: &[Sections] = &[
    Sections {
        command: "spillway",
        exit: ALL,
        examples: &[
            ("Check whether this machine can run paged programs:", "spillway doctor"),
            (
                "Sort a file in 64 MiB of memory:",
                "spillway run --local 64M -- sort big.txt > sorted.txt",
            ),
            ("Show how full the store of this host's daemon is:", "spillway stat"),
        ],
        see: DAEMON,
    },
    Sections {
        command: "spillway run",
        exit: RUN,
        examples: &[
            (
                "Run a program in 64 MiB, with one live line on standard error:",
                "spillway run --local 64M --progress -- sort big.txt > sorted.txt",
            ),
            (
                "Write pages that the store does not take to a file on a disk:",
                "spillway run --local 64M --store 16M --disk /var/tmp -- sort big.txt > sorted.txt",
            ),
            (
                "Keep the other pages in the store of this host's daemon:",
                "spillway run --local 64M --blade ring:/run/spillway/spillway.sock -- sort big.txt > sorted.txt",
            ),
        ],
        see: &[("spillway-doctor", '1'), ("spillway-guest-memory", '1'), ("spillwayd", '8')],
    },
    Sections {
        command: "spillway serve",
        exit: SERVE,
        examples: &[
            ("Serve a store of at most 1 GiB until Ctrl-C:", "spillway serve --capacity 1G"),
            (
                "Serve what a configuration says:",
                "spillway serve --config /etc/spillway/spillwayd.toml",
            ),
        ],
        see: &[("spillwayd", '8'), ("spillwayd.toml", '5'), ("spillway-stat", '1')],
    },
    Sections {
        command: "spillway reload",
        exit: ASKS,
        examples: &[(
            "Let the service of this host read its configuration, keys and tokens again:",
            "spillway reload --api /run/spillway/api.sock",
        )],
        see: DAEMON,
    },
    Sections {
        command: "spillway stat",
        exit: ASKS,
        examples: &[
            ("Show the store and its clients:", "spillway stat"),
            ("The same for a program to read:", "spillway stat -o json"),
        ],
        see: &[("spillway-top", '1'), ("spillwayd", '8')],
    },
    Sections {
        command: "spillway top",
        exit: ASKS,
        examples: &[
            ("Watch the clients, those with the most puts first:", "spillway top --sort puts"),
            (
                "Write three samples to a file, one every five seconds:",
                "spillway top -b -n 3 -d 5s > samples",
            ),
        ],
        see: &[("spillway-stat", '1'), ("spillway-dashboard", '1')],
    },
    Sections {
        command: "spillway dashboard",
        exit: ASKS,
        examples: &[("Print the address to open in a browser:", "spillway dashboard")],
        see: &[("spillway-serve", '1'), ("spillwayd.toml", '5')],
    },
    Sections {
        command: "spillway client",
        exit: ASKS,
        examples: &[
            ("List the clients:", "spillway client list"),
            (
                "Let the processes of a user hold 2 GiB:",
                "spillway client add alice --uid nobody --target 2G",
            ),
        ],
        see: DAEMON,
    },
    Sections {
        command: "spillway client list",
        exit: ASKS,
        examples: &[("List the clients, for a program to read:", "spillway client list -o json")],
        see: &[("spillway-stat", '1')],
    },
    Sections {
        command: "spillway client add",
        exit: ASKS,
        examples: &[
            (
                "Add the processes of a user, by its name or number:",
                "spillway client add web --uid nobody --target 2G",
            ),
            (
                "Add the host that authenticates with a secret over NVMe/TCP:",
                "spillway client add b --nqn nqn.2014-08.org.nvmexpress:uuid:6dab7a5c-3ef4-4b16-8f1f-b93d51ed2acd --secret-file b.secret",
            ),
        ],
        see: &[("spillway-client-set", '1'), ("spillwayd.toml", '5'), ("nvme-gen-dhchap-key", '1')],
    },
    Sections {
        command: "spillway client set",
        exit: ASKS,
        examples: &[
            (
                "Change the most and the least that a client may hold:",
                "spillway client set alice --target 3G --floor 512M",
            ),
            ("Remove its limit:", "spillway client set alice --target none"),
        ],
        see: &[("spillway-target", '1'), ("spillway-policy", '1')],
    },
    Sections {
        command: "spillway client remove",
        exit: ASKS,
        examples: &[(
            "Remove a client with all that it has stored:",
            "spillway client remove alice",
        )],
        see: &[("spillway-client-export", '1')],
    },
    Sections {
        command: "spillway client export",
        exit: ASKS,
        examples: &[
            (
                "Write what a client has stored to a file, which only you can read:",
                "spillway client export alice > alice.pools",
            ),
            (
                "Write what it has removed since:",
                "spillway client export alice --rest > alice.rest",
            ),
        ],
        see: &[("spillway-client-import", '1'), ("spillway-client-thaw", '1')],
    },
    Sections {
        command: "spillway client import",
        exit: ASKS,
        examples: &[(
            "Read an export into a client that has stored nothing yet:",
            "spillway client import alice < alice.pools",
        )],
        see: &[("spillway-client-export", '1')],
    },
    Sections {
        command: "spillway client thaw",
        exit: ASKS,
        examples: &[("Cancel a move:", "spillway client thaw alice")],
        see: &[("spillway-client-export", '1')],
    },
    Sections {
        command: "spillway client move",
        exit: ASKS,
        examples: &[(
            "Move all clients to another daemon, before this one is stopped:",
            "spillway client move --all --to https://there.example:8431 --to-token-file there.token",
        )],
        see: &[("spillway-client-export", '1'), ("spillway-client-thaw", '1')],
    },
    Sections {
        command: "spillway pool",
        exit: ASKS,
        examples: &[("List pools and block devices:", "spillway pool list")],
        see: DAEMON,
    },
    Sections {
        command: "spillway pool list",
        exit: ASKS,
        examples: &[("List pools and block devices, with their UUIDs:", "spillway pool list")],
        see: &[("spillway-pool-create", '1')],
    },
    Sections {
        command: "spillway pool create",
        exit: ASKS,
        examples: &[
            (
                "Create a block device onto which a kernel can swap:",
                "spillway pool create --client b --block 1G --name swap-b",
            ),
            ("Create a pool for a program:", "spillway pool create --client alice --ephemeral"),
        ],
        see: &[("spillway-pool-destroy", '1'), ("nvme-connect", '1'), ("nbd-client", '8')],
    },
    Sections {
        command: "spillway pool destroy",
        exit: ASKS,
        examples: &[
            ("Destroy a block device:", "spillway pool destroy --name swap-b"),
            ("Destroy a pool with its values:", "spillway pool destroy 7"),
        ],
        see: &[("spillway-pool-list", '1')],
    },
    Sections {
        command: "spillway disk",
        exit: ASKS,
        examples: &[("List tmem disks:", "spillway disk list")],
        see: DAEMON,
    },
    Sections {
        command: "spillway disk list",
        exit: ASKS,
        examples: &[("List tmem disks, and whether a guest uses them:", "spillway disk list")],
        see: &[("spillway-disk-empty", '1'), ("spillway-stat", '1')],
    },
    Sections {
        command: "spillway disk empty",
        exit: ASKS,
        examples: &[("Free the pages of a guest that has ended:", "spillway disk empty vm1-swap")],
        see: &[("spillway-disk-list", '1')],
    },
    Sections {
        command: "spillway target",
        exit: ASKS,
        examples: &[("Show a client's target and cap:", "spillway target get alice")],
        see: &[("spillway-policy", '1'), ("spillway-client-set", '1')],
    },
    Sections {
        command: "spillway target get",
        exit: ASKS,
        examples: &[("Show a client's target and cap:", "spillway target get alice")],
        see: &[("spillway-target-set", '1')],
    },
    Sections {
        command: "spillway target set",
        exit: ASKS,
        examples: &[
            ("Let a client hold at most 2 GiB:", "spillway target set alice 2G"),
            ("Remove its cap:", "spillway target set alice none"),
        ],
        see: &[("spillway-target-get", '1')],
    },
    Sections {
        command: "spillway policy",
        exit: ASKS,
        examples: &[("Show the policy:", "spillway policy show")],
        see: &[("spillway-target", '1'), ("spillway-sim", '1'), ("spillwayd.toml", '5')],
    },
    Sections {
        command: "spillway policy show",
        exit: ASKS,
        examples: &[("Show the policy and its parameters:", "spillway policy show")],
        see: &[("spillway-policy-set", '1')],
    },
    Sections {
        command: "spillway policy set",
        exit: ASKS,
        examples: &[
            (
                "Give memory to the clients that were refused some:",
                "spillway policy set smart-alloc --p 0.75 --interval 1s",
            ),
            (
                "Give memory where it saves the most waiting; a miss costs 500 microseconds:",
                "spillway policy set utility --miss 500us",
            ),
        ],
        see: &[("spillway-policy-show", '1'), ("spillway-sim", '1')],
    },
    Sections {
        command: "spillway lend",
        exit: ASKS,
        examples: &[("Show what this host lends and borrows:", "spillway lend status")],
        see: DAEMON,
    },
    Sections {
        command: "spillway lend status",
        exit: ASKS,
        examples: &[("Show loans, devices and the other hosts:", "spillway lend status")],
        see: NONE,
    },
    Sections {
        command: "spillway lend borrow",
        exit: ASKS,
        examples: &[("Borrow 1 GiB now:", "spillway lend borrow 1G")],
        see: &[("spillway-lend-return", '1')],
    },
    Sections {
        command: "spillway lend return",
        exit: ASKS,
        examples: &[("Return all borrowed memory:", "spillway lend return")],
        see: &[("spillway-lend-borrow", '1')],
    },
    Sections {
        command: "spillway lend drain",
        exit: ASKS,
        examples: &[("End all loans, for example before a reboot:", "spillway lend drain")],
        see: &[("spillway-lend-resume", '1')],
    },
    Sections {
        command: "spillway lend resume",
        exit: ASKS,
        examples: &[("Lend and borrow again:", "spillway lend resume")],
        see: &[("spillway-lend-drain", '1')],
    },
    Sections {
        command: "spillway vm",
        exit: ASKS,
        examples: &[("List the guests and their pool:", "spillway vm list")],
        see: &[("spillwayd", '8'), ("spillwayd.toml", '5'), ("spillway-agent", '8')],
    },
    Sections {
        command: "spillway vm list",
        exit: ASKS,
        examples: &[("List the guests and their pool:", "spillway vm list")],
        see: &[("spillway-vm-show", '1')],
    },
    Sections {
        command: "spillway vm show",
        exit: ASKS,
        examples: &[("Show a guest:", "spillway vm show web")],
        see: &[("spillway-vm-list", '1')],
    },
    Sections {
        command: "spillway vm resize",
        exit: RESIZES,
        examples: &[(
            "Give a guest 2 GiB, or what it had before if that is not reached:",
            "spillway vm resize web 2G --roll-back",
        )],
        see: &[("spillway-vm-grow", '1'), ("spillway-vm-shrink", '1')],
    },
    Sections {
        command: "spillway vm grow",
        exit: RESIZES,
        examples: &[("Give a guest 512 MiB more:", "spillway vm grow web 512M")],
        see: &[("spillway-vm-shrink", '1')],
    },
    Sections {
        command: "spillway vm shrink",
        exit: RESIZES,
        examples: &[("Take 512 MiB from a guest:", "spillway vm shrink web 512M")],
        see: &[("spillway-vm-grow", '1')],
    },
    Sections {
        command: "spillway vm auto",
        exit: ASKS,
        examples: &[("Keep a guest at its present size:", "spillway vm auto web off")],
        see: &[("spillway-vm-resize", '1')],
    },
    Sections {
        command: "spillway vm args",
        exit: ASKS,
        examples: &[("Print the options for a guest's QEMU:", "spillway vm args web")],
        see: &[("spillwayd.toml", '5')],
    },
    Sections {
        command: "spillway guest-memory",
        exit: GUEST_MEMORY,
        examples: &[(
            "Wait for a guest of Cloud Hypervisor, and keep at most 256 MiB of it in memory:",
            "spillway guest-memory --listen /run/guest.sock --handshake cloud-hypervisor --local 256M",
        )],
        see: &[("spillway-run", '1')],
    },
    Sections {
        command: "spillway sim",
        exit: ALONE,
        examples: &[
            ("List the scenarios:", "spillway sim"),
            (
                "Compare two policies in a scenario:",
                "spillway sim --scenario relay --policy greedy --policy utility",
            ),
        ],
        see: &[("spillway-policy", '1'), ("spillway-run", '1')],
    },
    Sections {
        command: "spillway cost",
        exit: ALONE,
        examples: &[
            ("Report with the paper's prices:", "spillway cost"),
            ("Report with prices of today:", "spillway cost --prices current"),
        ],
        see: NONE,
    },
    Sections {
        command: "spillway doctor",
        exit: DOCTOR,
        examples: &[
            ("Check this kernel and user:", "spillway doctor"),
            ("Check a directory for --disk too:", "spillway doctor --disk /var/tmp"),
        ],
        see: &[("spillway-run", '1')],
    },
    Sections {
        command: "spillway completions",
        exit: ALONE,
        examples: &[(
            "Install the completions of bash for this user:",
            "spillway completions bash > ~/.local/share/bash-completion/completions/spillway",
        )],
        see: NONE,
    },
    Sections {
        command: "spillway man",
        exit: ALONE,
        examples: &[(
            "Install the manual pages for this user:",
            "spillway man ~/.local/share/man/man1",
        )],
        see: NONE,
    },
];

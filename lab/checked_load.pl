# A client of RESP at a Unix socket that checks every value it gets, with nothing but perl-base: perl checked_load.pl SOCKET STOP
# It goes on until the file STOP exists, connects again when the server hangs up (a break), checks all keys once more, and
# prints one line: also how often a connection was refused. A value whose SET had no answer may be the old or the new one;
# any other difference, or a missing key, is wrong.
use strict;
use IO::Socket::UNIX;

my ($path, $stop) = @ARGV;
my ($server, $rounds, $breaks, $refused, $wrong, $longest, %may_be) = (undef, 0, 0, 0, 0, 0);
$SIG{PIPE} = "IGNORE";
$SIG{ALRM} = sub { die "no answer in 60 s\n" };

sub value { my ($key, $version) = @_; return substr("value $version of key $key; " x 200, 0, 3000) }

sub connected {
    for (1 .. 600) {
        return $server if $server ||= IO::Socket::UNIX->new($path);
        $refused++;
        select(undef, undef, undef, 0.1);
    }
    die "no server at $path within 60 s\n";
}

# The answer to a command; undef if the server hung up, "missing" for a key that is not there.
sub ask {
    my $text = "*" . @_ . "\r\n" . join("", map { "\$" . length($_) . "\r\n$_\r\n" } @_);
    my $socket = connected();
    my $begin = time;
    alarm 60;
    my $answer = eval {
        print $socket $text or die "hung up";
        $socket->flush() or die "hung up";
        defined(my $line = <$socket>) or die "hung up";
        $line =~ s/\r\n$// or die "hung up";
        if ($line =~ /^\$(-?\d+)/) {
            my $length = $1;
            $length < 0 ? "missing" : do {
                (read($socket, my $data, $length + 2) // 0) == $length + 2 or die "hung up";
                substr($data, 0, $length);
            };
        } else { $line }
    };
    die $@ if $@ && $@ !~ /^hung up/;
    alarm 0;
    $longest = time - $begin if time - $begin > $longest;
    if (!defined $answer) { $breaks++; undef $server }
    return $answer;
}

sub check {
    my ($key) = @_;
    defined(my $value = ask("GET", "key:$key")) or return;
    my @fits = grep { $value eq value($key, $_) } @{$may_be{$key}};
    if (@fits) { $may_be{$key} = [$fits[0]]; return 1 }
    $wrong++;
    print "key $key: ", substr($value, 0, 60), " but not of @{$may_be{$key}}\n" if $wrong <= 5;
    return 1;
}

until (-e $stop) {
    my $key = int rand 400;
    $rounds++;
    if ($may_be{$key} && rand() < 0.5) { check($key) }
    else {
        my @before = @{$may_be{$key} || []};
        my $answer = ask("SET", "key:$key", value($key, $rounds));
        if (!defined $answer) { $may_be{$key} = [@before, $rounds] if @before; next }
        die "SET says $answer\n" if $answer ne "+OK";
        $may_be{$key} = [$rounds];
    }
}
for my $key (keys %may_be) { 1 until check($key) }
print "rounds $rounds breaks $breaks refused $refused keys ", scalar(keys %may_be), " wrong $wrong longest_s $longest\n";

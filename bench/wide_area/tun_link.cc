// The links of a cluster file under real TCP: each device, and a broker, gets a network namespace of its own
// with one TUN device in it, and this process, which holds all of them, is the only way between. A packet
// passes its sender's uplink, what lies between the two, and its receiver's downlink, each a queue of a rate
// that drops what does not fit; what the file says of delay, jitter and loss happens in the middle.
// Congestion control, its retransmissions and its silences are the kernel's.
//   weft_tun_link CLUSTER [--seed N] [--queue-ms N] [--congestion NAME]
// Prints "NAME ADDRESS NAMESPACE" for the broker ("-") and each device, then "ready", and goes on until it is
// ended. NAMESPACE is a file for nsenter(1) while this process lives; the namespaces and what is in them go
// with it, so nothing is left to clean up, however it ends. SIGUSR1: what each way has carried, as JSON
// lines. Exit status 2: it is not root, or there is no TUN device.
#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cinttypes>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <queue>
#include <string>
#include <vector>

#include "base/rng.h"
#include "configs/cluster.h"
#include "net/model/rate_clock.h"

namespace weft::bench {
namespace {

constexpr size_t kPacketMax = 1500;  // the devices' MTU, as on the internet
constexpr int kReadsAtOnce = 64;     // of one device, before the others
constexpr size_t kNodesMax = 250;    // of the /24 that they share

[[noreturn]] void give_up(int status, const std::string& what) {
  std::fprintf(stderr, "weft_tun_link: %s\n", what.c_str());
  std::exit(status);
}
[[noreturn]] void lacks(const std::string& what) {
  give_up(2, what + ": " + std::strerror(errno) +
                 "; it needs root (CAP_NET_ADMIN, CAP_SYS_ADMIN) and /dev/net/tun");
}

Instant now() { return Instant(std::chrono::steady_clock::now().time_since_epoch()); }

// A rate and the queue before it, in time.
class Line {
 public:
  Line(double bytes_per_second, Duration queue) : clock_(bytes_per_second), queue_(queue) {}

  // When a packet that comes at `at` has passed; nothing: the queue is full.
  std::optional<Instant> pass(size_t size, Instant at) {
    if (!clock_.is_limited()) return at;
    if (clock_.free() > at && clock_.free() - at > queue_) return std::nullopt;
    return clock_.pass(size, at);
  }

 private:
  net::RateClock clock_;
  Duration queue_;
};

// From one node to another.
struct Path {
  configs::LinkProfile profile;  // a rate of 0: no limit, and no delay
  Line line;
  Rng rng;
  Instant last{};                   // order is kept
  double bytes_per_second = 0;      // the least of the three on it
  uint64_t bytes = 0, packets = 0;  // that came through, with their headers
  uint64_t dropped = 0, lost = 0;   // packets: by a full queue, by chance
};

struct Node {
  std::string name, region;
  int tun = -1, space = -1;
  Line up, down;
};

struct Packet {
  Instant at;
  uint64_t order;  // among those of one instant
  uint32_t from, to;
  bool in_downlink;
  std::vector<std::byte> bytes;
  bool operator<(const Packet& other) const {  // the queue's front is the greatest
    return at != other.at ? at > other.at : order > other.order;
  }
};

struct Options {
  std::string cluster, congestion;
  uint64_t seed = 1;
  Duration queue = std::chrono::milliseconds(100);
};

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    if (name.rfind("--", 0) != 0 && options.cluster.empty()) {
      options.cluster = name;
      continue;
    }
    if (i + 1 == argc || (name != "--seed" && name != "--queue-ms" && name != "--congestion"))
      give_up(2, "weft_tun_link CLUSTER [--seed N] [--queue-ms N] [--congestion NAME]");
    const char* value = argv[++i];
    if (name == "--seed") options.seed = std::strtoull(value, nullptr, 10);
    if (name == "--queue-ms") options.queue = std::chrono::milliseconds(std::strtoull(value, nullptr, 10));
    if (name == "--congestion") options.congestion = value;
  }
  if (options.cluster.empty()) give_up(2, "which cluster file?");
  return options;
}

in_addr address_of(size_t node) {
  return {htonl(0x0a4d0001u + static_cast<uint32_t>(node))};
}  // 10.77.0.1 on

// Brings an interface of this namespace up; with an address of the /24, unless it is the loopback.
void bring_up(const char* name, std::optional<in_addr> address) {
  const int fd = ::socket(AF_INET, SOCK_DGRAM, 0);
  if (fd < 0) lacks("a socket");
  ifreq request{};
  std::strncpy(request.ifr_name, name, IFNAMSIZ - 1);
  if (address) {
    sockaddr_in ip{};
    ip.sin_family = AF_INET;
    ip.sin_addr = *address;
    std::memcpy(&request.ifr_addr, &ip, sizeof ip);
    if (::ioctl(fd, SIOCSIFADDR, &request) != 0) lacks("an address for a TUN device");
    ip.sin_addr.s_addr = htonl(0xffffff00u);
    std::memcpy(&request.ifr_netmask, &ip, sizeof ip);
    if (::ioctl(fd, SIOCSIFNETMASK, &request) != 0) lacks("a netmask for a TUN device");
    request.ifr_mtu = static_cast<int>(kPacketMax);
    if (::ioctl(fd, SIOCSIFMTU, &request) != 0) lacks("a TUN device's MTU");
  }
  if (::ioctl(fd, SIOCGIFFLAGS, &request) != 0) lacks("an interface's flags");
  request.ifr_flags |= IFF_UP | IFF_RUNNING;
  if (::ioctl(fd, SIOCSIFFLAGS, &request) != 0) lacks("bringing an interface up");
  ::close(fd);
}

// A namespace, with the TUN device in it that this process reads and writes from wherever it is later.
void make_space(Node& node, size_t index, const std::string& congestion) {
  if (::unshare(CLONE_NEWNET) != 0) lacks("a network namespace");
  node.space = ::open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
  node.tun = ::open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
  if (node.space < 0 || node.tun < 0) lacks("/dev/net/tun");
  ifreq request{};
  request.ifr_flags = IFF_TUN | IFF_NO_PI;
  std::strncpy(request.ifr_name, "weft0", IFNAMSIZ - 1);
  if (::ioctl(node.tun, TUNSETIFF, &request) != 0) lacks("a TUN device");
  bring_up("lo", std::nullopt);
  bring_up("weft0", address_of(index));
  if (congestion.empty()) return;
  const int fd = ::open("/proc/sys/net/ipv4/tcp_congestion_control", O_WRONLY | O_CLOEXEC);
  if (fd < 0 || ::write(fd, congestion.data(), congestion.size()) < 0)
    give_up(2, "congestion control " + congestion.substr(0, 32) + ": " + std::strerror(errno) +
                   "; sysctl net.ipv4.tcp_allowed_congestion_control lists what a namespace may take");
  ::close(fd);
}

class Router {
 public:
  Router(const configs::Cluster& cluster, const Options& options);

  void run();

 private:
  void take(uint32_t from);
  void carry(Packet packet);
  void tell() const;
  Path& path(uint32_t from, uint32_t to) { return paths_[from * nodes_.size() + to]; }

  std::vector<Node> nodes_;  // the broker first
  std::vector<Path> paths_;  // by from and to
  std::priority_queue<Packet> under_way_;
  uint64_t order_ = 0;
};

Router::Router(const configs::Cluster& cluster, const Options& options) {
  nodes_.push_back({.name = "-", .region = cluster.broker, .up = {0, {}}, .down = {0, {}}});
  std::vector<double> up{0}, down{0};
  for (const configs::ClusterDevice& device : cluster.devices) {
    up.push_back(device.uplink.value_or(0));
    down.push_back(device.downlink.value_or(0));
    nodes_.push_back({.name = device.name,
                      .region = device.region,
                      .up = {up.back(), options.queue},
                      .down = {down.back(), options.queue}});
  }
  if (nodes_.size() > kNodesMax) give_up(2, "more devices than one network holds");
  for (size_t from = 0; from < nodes_.size(); ++from)
    for (size_t to = 0; to < nodes_.size(); ++to) {
      // As the emulator has it: a broker that is in no region is at everybody's door.
      configs::LinkProfile profile;
      Duration round_trip{};
      if (!nodes_[from].region.empty() && !nodes_[to].region.empty() && from != to) {
        const auto there = configs::link_between(cluster, nodes_[from].region, nodes_[to].region),
                   back = configs::link_between(cluster, nodes_[to].region, nodes_[from].region);
        if (!there || !back) give_up(1, (there ? back : there).error().message);
        profile = *there;
        round_trip = there->latency + back->latency;
      }
      double least = profile.bytes_per_second;
      for (const double rate : {up[from], down[to]})
        if (rate > 0) least = least > 0 ? std::min(least, rate) : rate;
      paths_.push_back({.profile = profile,
                        .line = {profile.bytes_per_second, std::max(options.queue, round_trip)},
                        .rng = Rng(options.seed, from * kNodesMax + to),
                        .bytes_per_second = least});
    }
  for (size_t n = 0; n < nodes_.size(); ++n) make_space(nodes_[n], n, options.congestion);
  for (size_t n = 0; n < nodes_.size(); ++n) {
    char text[INET_ADDRSTRLEN];
    const in_addr address = address_of(n);
    ::inet_ntop(AF_INET, &address, text, sizeof text);
    std::printf("%s %s /proc/%d/fd/%d\n", nodes_[n].name.c_str(), text, ::getpid(), nodes_[n].space);
  }
  std::fprintf(stderr, "weft_tun_link: seed %" PRIu64 "\n", options.seed);
  std::printf("ready\n");
  std::fflush(stdout);
}

// What a device sent: through its uplink and what lies between, which nobody else enters.
void Router::take(uint32_t from) {
  std::byte buffer[kPacketMax];
  for (int reads = 0; reads < kReadsAtOnce; ++reads) {
    const ssize_t size = ::read(nodes_[from].tun, buffer, sizeof buffer);
    if (size <= 0) return;
    if (size < 20 || (static_cast<uint8_t>(buffer[0]) >> 4) != 4) continue;  // IPv6 looks for routers
    in_addr target;
    std::memcpy(&target, buffer + 16, sizeof target);
    const uint32_t to = ntohl(target.s_addr) - ntohl(address_of(0).s_addr);
    if (to >= nodes_.size() || to == from) continue;
    Path& between = path(from, to);
    const auto bytes = static_cast<size_t>(size);
    auto at = nodes_[from].up.pass(bytes, now());
    if (at && between.profile.loss > 0 && between.rng.uniform() < between.profile.loss) {
      ++between.lost;
      continue;
    }
    if (at) at = between.line.pass(bytes, *at);
    if (!at) {
      ++between.dropped;
      continue;
    }
    Instant out = *at + between.profile.latency;
    if (between.profile.jitter > Duration::zero())
      out += Duration(
          static_cast<int64_t>(between.rng.below(static_cast<uint64_t>(between.profile.jitter.count()))));
    between.last = std::max(between.last, out);
    under_way_.push({between.last, order_++, from, to, false, {buffer, buffer + bytes}});
  }
}

// It has come to a downlink, or out of it.
void Router::carry(Packet packet) {
  Path& between = path(packet.from, packet.to);
  if (!packet.in_downlink) {
    const auto at = nodes_[packet.to].down.pass(packet.bytes.size(), packet.at);
    if (!at) {
      ++between.dropped;
      return;
    }
    packet.in_downlink = true;
    if (*at > packet.at) {
      packet.at = *at;
      packet.order = order_++;
      return under_way_.push(std::move(packet));
    }
  }
  if (::write(nodes_[packet.to].tun, packet.bytes.data(), packet.bytes.size()) < 0) {
    ++between.dropped;
    return;
  }
  ++between.packets;
  between.bytes += packet.bytes.size();
}

void Router::tell() const {
  for (size_t from = 0; from < nodes_.size(); ++from)
    for (size_t to = 0; to < nodes_.size(); ++to) {
      const Path& between = paths_[from * nodes_.size() + to];
      if (between.packets + between.dropped + between.lost == 0) continue;
      std::printf(
          "{\"event\":\"way\",\"from\":\"%s\",\"to\":\"%s\",\"bytes_per_second\":%.6g,\"bytes\":%" PRIu64
          ",\"packets\":%" PRIu64 ",\"dropped\":%" PRIu64 ",\"lost\":%" PRIu64 "}\n",
          nodes_[from].name.c_str(), nodes_[to].name.c_str(), between.bytes_per_second, between.bytes,
          between.packets, between.dropped, between.lost);
    }
  std::printf("{\"event\":\"told\"}\n");
  std::fflush(stdout);
}

void Router::run() {
  sigset_t signals;
  sigemptyset(&signals);
  for (const int signal : {SIGINT, SIGTERM, SIGUSR1}) sigaddset(&signals, signal);
  ::sigprocmask(SIG_BLOCK, &signals, nullptr);
  std::vector<pollfd> polled{{::signalfd(-1, &signals, SFD_NONBLOCK | SFD_CLOEXEC), POLLIN, 0}};
  for (const Node& node : nodes_) polled.push_back({node.tun, POLLIN, 0});
  for (;;) {
    while (!under_way_.empty() && under_way_.top().at <= now()) {
      Packet packet = under_way_.top();
      under_way_.pop();
      carry(std::move(packet));
    }
    timespec wait{3600, 0};
    if (!under_way_.empty()) {
      const Duration left = std::max(under_way_.top().at - now(), Duration::zero());
      wait = {left / std::chrono::seconds(1), static_cast<long>((left % std::chrono::seconds(1)).count())};
    }
    if (::ppoll(polled.data(), polled.size(), &wait, nullptr) <= 0) continue;
    signalfd_siginfo signal;
    while (::read(polled[0].fd, &signal, sizeof signal) == sizeof signal) {
      if (signal.ssi_signo != SIGUSR1) return;
      tell();
    }
    for (uint32_t n = 0; n < nodes_.size(); ++n)
      if (polled[n + 1].revents != 0) take(n);
  }
}

int run(const Options& options) {
  const auto cluster = configs::load_cluster(options.cluster);
  if (!cluster) give_up(1, cluster.error().message);
  ::prctl(PR_SET_PDEATHSIG, SIGTERM);  // it is of use to who started it alone
  Router(*cluster, options).run();
  return 0;
}

}  // namespace
}  // namespace weft::bench

int main(int argc, char** argv) { return weft::bench::run(weft::bench::parse(argc, argv)); }

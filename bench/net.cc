// How much of a link a connection carries (target S5), and how many handshakes a second.
//   weft_bench_net [SECONDS [SAMPLES]]     seconds of each sample (0.5), how many at most (7)
// Loopback: one connection against one plain TCP stream, one thread for each end, alternating, medians of
// seven. Emulated links: bytes of payload, with TLS and frames, against the link's own rate. MB are 1e6
// bytes of payload. An uplink: what several connections have of it together, and the least of them.
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <future>
#include <memory>
#include <thread>
#include <vector>

#include "base/check.h"
#include "bench/numbers.h"
#include "net/connection.h"
#include "net/listener.h"
#include "net/model/link_model.h"
#include "security/identity.h"

namespace weft::net {
namespace {

using Clock = std::chrono::steady_clock;
constexpr size_t kFrameSize = 4 << 20;
constexpr Duration kPatience = std::chrono::seconds(120);

double since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// Of all threads: says more than the wall clock on a machine that does other things, too.
double cpu_seconds() {
  timespec time{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

struct Sample {
  double bytes_per_second = 0;
  double cpu_per_gigabyte = 0;  // seconds, both ends
};

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

int listening_socket(uint16_t& port) {
  const int listening = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  WEFT_CHECK(::bind(listening, reinterpret_cast<sockaddr*>(&address), size) == 0);
  WEFT_CHECK(::listen(listening, 8) == 0);
  ::getsockname(listening, reinterpret_cast<sockaddr*>(&address), &size);
  port = ntohs(address.sin_port);
  return listening;
}

// One plain stream: bytes a second that the receiver saw.
Sample plain_stream(double sample_seconds) {
  uint16_t port = 0;
  const int listening = listening_socket(port);
  std::atomic<bool> stop = false;
  std::thread sender([&] {
    const int out = ::socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    WEFT_CHECK(::connect(out, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0);
    const std::vector<char> bytes(256 << 10, 'x');
    while (!stop && ::send(out, bytes.data(), bytes.size(), MSG_NOSIGNAL) > 0) continue;
    ::close(out);
  });
  const int in = ::accept(listening, nullptr, nullptr);
  std::vector<char> into(256 << 10);
  size_t total = 0;
  for (const auto warm_up = Clock::now(); since(warm_up) < 0.1;)
    WEFT_CHECK(::recv(in, into.data(), into.size(), 0) > 0);
  const auto start = Clock::now();
  const double cpu_before = cpu_seconds();
  while (since(start) < sample_seconds) {
    const ssize_t size = ::recv(in, into.data(), into.size(), 0);
    WEFT_CHECK(size > 0);
    total += static_cast<size_t>(size);
  }
  const Sample sample{static_cast<double>(total) / since(start),
                      (cpu_seconds() - cpu_before) / static_cast<double>(total) * 1e9};
  stop = true;
  ::close(in);
  sender.join();
  ::close(listening);
  return sample;
}

// A receiver on a loop and thread of its own.
class Receiver {
 public:
  Receiver() : identity_(std::move(*security::Identity::generate())) {
    std::promise<Endpoint> bound;
    auto endpoint = bound.get_future();
    thread_ = std::thread([this, &bound] {
      Loop loop;
      loop_ = &loop;
      std::vector<ConnectionPtr> connections;
      auto listener = std::move(*Listener::open(
          loop, {"127.0.0.1", 0},
          {.identity = identity_.get(),
           .limits = {.handshakes_max = 4096, .handshakes_max_per_address = 4096}},
          [&](ConnectionPtr connection) {
            ++accepted_;
            connection->set_limits({.frame_size_max = kFrameSize});
            connection->start({.on_frame = [this](const InFrame& frame) { bytes_ += frame.payload.size(); },
                               .on_closed = [](const Error&) {}});
            connections.push_back(std::move(connection));
            if (connections.size() > 400) connections.clear();
          }));
      bound.set_value(listener->endpoint());
      loop.run();
    });
    endpoint_ = endpoint.get();
  }
  ~Receiver() {
    loop_->stop();
    thread_.join();
  }
  const Endpoint& endpoint() const { return endpoint_; }
  PeerId id() const { return identity_->id(); }
  size_t bytes() const { return bytes_; }
  size_t accepted() const { return accepted_; }

 private:
  std::unique_ptr<security::Identity> identity_;
  std::thread thread_;
  Loop* loop_ = nullptr;
  Endpoint endpoint_;
  std::atomic<size_t> bytes_ = 0, accepted_ = 0;
};

// Bytes a second of one connection, frames of `frame_size` kept in flight.
Sample weft_stream(double sample_seconds, const std::optional<Shape>& shape, size_t frame_size,
                   double warm_up) {
  const auto identity = std::move(*security::Identity::generate());
  Receiver receiver;
  Loop loop;
  ConnectionPtr connection;
  const auto attempt = connect(loop, receiver.endpoint(),
                               {.identity = identity.get(), .expected = receiver.id(), .shape = shape},
                               [&](Result<ConnectionPtr> result) { connection = std::move(*result); });
  WEFT_CHECK(loop.run_until(kPatience, [&] { return connection != nullptr; }));
  const auto owner = std::make_shared<std::vector<std::byte>>(frame_size);
  bool has_failed = false;
  const auto fill = [&] {
    while (connection->stats().bytes_queued < 4 * frame_size)
      connection->send({.kind = 1, .head = {}, .body = {owner, *owner}});
  };
  connection->start(
      {.on_frame = [](const InFrame&) {}, .on_closed = [&](const Error&) { has_failed = true; }});
  auto start = Clock::now();
  size_t begin = 0;
  bool is_measuring = false;
  double cpu_before = 0;
  loop.run_until(kPatience, [&] {
    fill();
    if (!is_measuring && since(start) > warm_up && receiver.bytes() > 0) {
      is_measuring = true;
      begin = receiver.bytes();
      start = Clock::now();
      cpu_before = cpu_seconds();
    }
    return has_failed || (is_measuring && since(start) > sample_seconds);
  });
  const auto bytes = static_cast<double>(receiver.bytes() - begin);
  const Sample sample{bytes / since(start), (cpu_seconds() - cpu_before) / bytes * 1e9};
  connection->close();
  return sample;
}

double handshakes_per_second() {
  const auto identity = std::move(*security::Identity::generate());
  Receiver receiver;
  Loop loop;
  constexpr int kCount = 400, kAtOnce = 16;
  int begun = 0, done = 0;
  std::vector<std::unique_ptr<Attempt>> attempts;
  std::vector<ConnectionPtr> connections;
  const std::function<void()> begin = [&] {
    ++begun;
    attempts.push_back(connect(loop, receiver.endpoint(),
                               {.identity = identity.get(), .expected = receiver.id()},
                               [&](Result<ConnectionPtr> result) {
                                 connections.push_back(std::move(*result));
                                 ++done;
                                 if (begun < kCount) begin();
                               }));
  };
  const auto start = Clock::now();
  for (int i = 0; i < kAtOnce; ++i) begin();
  WEFT_CHECK(loop.run_until(kPatience, [&] { return done == kCount; }));
  while (receiver.accepted() < kCount) std::this_thread::yield();
  return kCount / since(start);
}

void print_loopback(double sample_seconds, int samples) {
  std::vector<double> plain, weft, ratios, plain_cpu, weft_cpu;
  (void)weft_stream(0.2, {}, kFrameSize, 0.1);
  for (int i = 0; i < samples; ++i) {
    const Sample one = plain_stream(sample_seconds), two = weft_stream(sample_seconds, {}, kFrameSize, 0.1);
    plain.push_back(one.bytes_per_second);
    weft.push_back(two.bytes_per_second);
    plain_cpu.push_back(one.cpu_per_gigabyte);
    weft_cpu.push_back(two.cpu_per_gigabyte);
    ratios.push_back(weft.back() / plain.back());
  }
  std::printf(
      "loopback, one stream: plain TCP %.0f MB/s, weft (TLS 1.3, frames of 4 MiB) %.0f MB/s, ratio %.2f\n",
      median(plain) / 1e6, median(weft) / 1e6, median(ratios));
  std::printf("loopback, processor seconds for a GB, both ends: plain TCP %.2f, weft %.2f\n",
              median(plain_cpu), median(weft_cpu));
  std::vector<double> small;
  small.reserve(3);
  for (int i = 0; i < std::min(3, samples); ++i)
    small.push_back(weft_stream(sample_seconds, {}, 1000, 0.1).bytes_per_second);
  std::printf("loopback, frames of 1000 bytes: %.0f MB/s, %.0f thousand frames/s\n", median(small) / 1e6,
              median(small) / 1e6);
}

void print_link(const char* name, double bytes_per_second, Duration delay, double sample_seconds,
                int samples) {
  const ShapeDirection direction{.bytes_per_second = bytes_per_second, .delay = delay};
  const Shape shape{.send = direction, .receive = {.delay = delay}};
  const size_t frame_size =
      std::clamp<size_t>(static_cast<size_t>(bytes_per_second / 100), 16 << 10, 1 << 20);
  std::vector<double> rates;
  rates.reserve(static_cast<size_t>(samples));
  for (int i = 0; i < samples; ++i)
    rates.push_back(weft_stream(sample_seconds, shape, frame_size, 0.5).bytes_per_second);
  const double rate = median(rates);
  std::printf("link %s: %.2f of %.2f MB/s, ratio %.3f\n", name, rate / 1e6, bytes_per_second / 1e6,
              rate / bytes_per_second);
}

// Connections of one process, each on a thread of its own, through its one uplink.
void print_uplink(int connections, double bytes_per_second, double sample_seconds) {
  const Shape shape{.send = {.delay = std::chrono::milliseconds(10)},
                    .uplink = AccessLine::make(bytes_per_second)};
  std::vector<std::future<Sample>> samples;
  samples.reserve(static_cast<size_t>(connections));
  for (int i = 0; i < connections; ++i)
    samples.push_back(
        std::async(std::launch::async, [&] { return weft_stream(sample_seconds, shape, 64 << 10, 0.5); }));
  double sum = 0, least = bytes_per_second;
  for (auto& sample : samples) {
    const double rate = sample.get().bytes_per_second;
    sum += rate;
    least = std::min(least, rate);
  }
  std::printf(
      "uplink of %.2f MB/s, %d connections: %.2f MB/s in all, ratio %.3f; the least has %.3f of its part\n",
      bytes_per_second / 1e6, connections, sum / 1e6, sum / bytes_per_second,
      least * connections / bytes_per_second);
}

}  // namespace
}  // namespace weft::net

int main(int argc, char** argv) {
  using namespace weft::net;
  using std::chrono::microseconds;
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  const double sample_seconds = argc > 1 ? weft::bench::number_of<double>(argv[1]) : 0.5;
  const int samples = argc > 2 ? std::max(1, weft::bench::number_of<int>(argv[2])) : 7;
  const int few = std::min(3, samples);
  print_loopback(sample_seconds, samples);
  print_link("8 Mbit/s, 25 ms", 1e6, microseconds(25'000), 6 * sample_seconds, few);
  print_link("100 Mbit/s, 10 ms", 12.5e6, microseconds(10'000), 3 * sample_seconds, few);
  print_link("1 Gbit/s, 0.5 ms", 125e6, microseconds(500), 3 * sample_seconds, few);
  print_uplink(2, 12.5e6, 6 * sample_seconds);
  print_uplink(5, 12.5e6, 6 * sample_seconds);
  std::vector<double> handshakes;
  handshakes.reserve(static_cast<size_t>(few));
  for (int i = 0; i < few; ++i) handshakes.push_back(handshakes_per_second());
  std::printf("handshakes, both ends on this machine: %.0f a second\n", median(handshakes));
  return 0;
}

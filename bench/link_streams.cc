// How much of a way a link's connections carry, and how long a tensor that is needed at once takes while
// large ones are under way.
//   weft_bench_link_streams [FROM_NAMESPACE TO_NAMESPACE TO_ADDRESS [SECONDS]] | [SECONDS]
// Over loopback, or between two network namespaces of weft_tun_link: bench/link_streams.sh. Large tensors are
// of 1 MiB, a few more than the way holds are kept under way; small ones of 8 KiB go every 100 ms. MB are 1e6
// bytes of payload.
#include <fcntl.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "base/check.h"
#include "bench/numbers.h"
#include "peer/service/bulk.h"
#include "peer/service/link_service.h"
#include "security/identity.h"

namespace weft::peer {
namespace {

constexpr int64_t kLarge = 1 << 20, kSmall = 8 << 10;  // bytes
constexpr uint64_t kUnderWay = 24;                     // large tensors
constexpr uint64_t kLate = 1'000'000;                  // the step of the large ones: what is needed last

// Sockets that this thread, and those that it starts from now on, make belong there.
void enter(const char* space) {
  if (space == nullptr) return;
  const int file = ::open(space, O_RDONLY | O_CLOEXEC);
  WEFT_CHECK_MSG(file >= 0 && ::setns(file, CLONE_NEWNET) == 0, "the namespace cannot be entered");
  ::close(file);
}

struct Figures {
  double bytes_per_second = 0;
  std::vector<double> small_seconds{};
};

Figures measure(uint32_t streams, Duration measured, const char* from, const char* to, const char* address) {
  const Duration warm_up = measured / 5;
  net::Loop loop;
  const auto identities =
      std::array{std::move(*security::Identity::generate()), std::move(*security::Identity::generate())};
  int up = 0;
  uint64_t large_sent = 0, large_came = 0, bytes = 0, steps = 0;
  std::map<uint64_t, Instant> small_sent;
  Figures figures;
  bool is_measuring = false;
  const auto start = [&](int side, const char* space, const char* host) {
    enter(space);
    LinkService::Options options;
    options.identity = identities[static_cast<size_t>(side)].get();
    options.listen = net::Endpoint{host, 0};
    options.streams = streams;
    return std::move(*LinkService::start(
        loop, std::move(options),
        {.on_all_up = [&](uint64_t) { ++up; },
         .on_down =
             [](uint64_t, const plan::Seat&, const Error& error) {
               std::fprintf(stderr, "the link is down: %s\n", error.message.c_str());
               std::exit(1);
             },
         .on_tensor =
             [&](uint64_t, const plan::Seat&, const proto::TensorHeader& header, const dag::Tensor& tensor) {
               if (is_measuring) bytes += tensor.bytes().size();
               if (header.step >= kLate)
                 ++large_came;
               else if (is_measuring)
                 figures.small_seconds.push_back(seconds(loop.now() - small_sent.at(header.step)));
             }}));
  };
  const auto receiver = start(1, to, address == nullptr ? "127.0.0.1" : address);
  const auto sender = start(0, from, "127.0.0.1");
  for (const uint32_t stage : {1u, 0u}) {
    auto assignment = std::make_shared<proto::AssignStage>();
    assignment->run = 1;
    assignment->plan_version = 1;
    assignment->seat = {stage};
    assignment->links = {{.seat = {1 - stage},
                          .peer = identities[1 - stage]->id(),
                          .dials = stage == 0,
                          .addresses = {net::to_string(*receiver->endpoint())}}};
    (stage == 0 ? sender : receiver)->open(1, assignment);
  }
  WEFT_CHECK(loop.run_until(std::chrono::seconds(30), [&] { return up == 2; }));
  const auto send = [&](uint64_t step, int64_t size) {
    const dag::Tensor tensor(dag::TensorSpec{dag::DType::U8, {size}});
    sender->send(1, {1}, {.run = 1, .plan_version = 1, .step = step, .spec = tensor.spec()}, tensor);
  };
  const Instant began = loop.now();
  Instant measured_from{}, small_at{};
  loop.run_until(warm_up + 2 * measured, [&] {
    const Instant now = loop.now();
    while (large_sent - large_came < kUnderWay) send(kLate + ++large_sent, kLarge);
    if (now - small_at >= std::chrono::milliseconds(100)) {
      small_at = now;
      small_sent[++steps] = now;
      send(steps, kSmall);
    }
    if (!is_measuring && now - began >= warm_up) is_measuring = true, measured_from = now;
    return is_measuring && now - measured_from >= measured;
  });
  figures.bytes_per_second = static_cast<double>(bytes) / seconds(loop.now() - measured_from);
  std::sort(figures.small_seconds.begin(), figures.small_seconds.end());
  return figures;
}

}  // namespace
}  // namespace weft::peer

int main(int argc, char** argv) {
  using namespace weft::peer;
  const char* from = argc > 3 ? argv[1] : nullptr;
  const char* to = argc > 3 ? argv[2] : nullptr;
  const char* address = argc > 3 ? argv[3] : nullptr;
  const char* given = argc == 2 ? argv[1] : argc > 4 ? argv[4] : "20";
  const auto measured = std::chrono::seconds(std::max(1, weft::bench::number_of<int>(given)));
  for (const uint32_t streams : {0u, 1u, 4u}) {
    const Figures figures = measure(streams, measured, from, to, address);
    const auto& small = figures.small_seconds;
    std::printf("%s: %.2f MB/s; a small tensor that is needed first: median %.0f ms, 90%% %.0f ms, of %zu\n",
                streams == 0   ? "whole tensors, one connection"
                : streams == 1 ? "pieces, one connection       "
                               : "pieces, up to 4 connections  ",
                figures.bytes_per_second / 1e6, small.empty() ? 0 : 1e3 * small[small.size() / 2],
                small.empty() ? 0 : 1e3 * small[small.size() * 9 / 10], small.size());
    std::fflush(stdout);
  }
  return 0;
}

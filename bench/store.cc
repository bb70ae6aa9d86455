// The broker's database: how long opening and loading takes with so many events, with the file in memory and
// with the file on the disk, and how many appends with one Step event each are made durable a second.
//   weft_bench_store [FOLDER [EVENTS [SECONDS]]]     the most events (1000000); how long it appends (3 s)
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include "bench/numbers.h"
#include "broker/store/sqlite_store.h"

namespace weft::broker {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

double milliseconds_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

template <typename T>
T value_or_exit(Result<T> result) {
  if (result) return std::move(result).value();
  std::fprintf(stderr, "%s\n", result.error().message.c_str());
  std::exit(1);
}
void require(const Status& status) {
  if (status) return;
  std::fprintf(stderr, "%s\n", status.error().message.c_str());
  std::exit(1);
}

Record step_event(uint64_t sequence) {
  proto::JobEvent event{.job = 1, .sequence = sequence, .unix_ms = 1'700'000'000'000};
  event.kind = proto::JobEventKind::Step;
  event.step = sequence;
  event.loss = 2.5 / static_cast<double>(sequence);
  event.learning_rate = 1e-3;
  event.seconds = 0.25;
  event.samples_per_second = 512.25;
  event.gradient_norm = 0.125;
  event.samples = sequence * 128;
  return event;
}

void forget_pages(const fs::path& file) {
  const int descriptor = ::open(file.c_str(), O_RDONLY);
  ::fsync(descriptor);
  ::posix_fadvise(descriptor, 0, 0, POSIX_FADV_DONTNEED);
  ::close(descriptor);
}

struct Opening {
  double open_ms = 0, load_ms = 0;
};
Opening open_and_load(const fs::path& file) {
  Opening times;
  auto start = Clock::now();
  const auto store = value_or_exit(open_sqlite_store(file));
  times.open_ms = milliseconds_since(start);
  start = Clock::now();
  value_or_exit(store->load());
  times.load_ms = milliseconds_since(start);
  return times;
}

void fill(const fs::path& file, uint64_t from, uint64_t to) {
  const auto store = value_or_exit(open_sqlite_store(file));
  for (uint64_t sequence = from; sequence < to;) {
    std::vector<Record> records;
    if (sequence == 0) records.emplace_back(JobSubmitted{.job = 1});
    while (records.size() < 10'000 && sequence < to) records.emplace_back(step_event(++sequence));
    require(store->append(records));
  }
}

void measure_opening(const fs::path& folder, uint64_t most) {
  const fs::path file = folder / "events.sqlite";
  uint64_t made = 0;
  for (const uint64_t count : {10'000, 100'000, 1'000'000}) {
    if (count > most) break;
    fill(file, made, count);
    made = count;
    forget_pages(file);
    const Opening cold = open_and_load(file);
    const Opening warm = open_and_load(file);
    std::printf(
        "%8lu events, %4lu MiB: open %7.1f ms, load %5.1f ms; pages not in memory: %7.1f ms, %5.1f ms\n",
        static_cast<unsigned long>(count), static_cast<unsigned long>(fs::file_size(file) >> 20),
        warm.open_ms, warm.load_ms, cold.open_ms, cold.load_ms);
  }
}

void measure_appending(const fs::path& folder, double seconds_long) {
  const auto store = value_or_exit(open_sqlite_store(folder / "appends.sqlite"));
  require(store->append(std::vector<Record>{JobSubmitted{.job = 1}}));
  std::vector<double> times;
  const auto start = Clock::now();
  for (uint64_t sequence = 1; milliseconds_since(start) < 1000 * seconds_long; ++sequence) {
    const auto before = Clock::now();
    require(store->append(std::vector<Record>{step_event(sequence)}));
    times.push_back(milliseconds_since(before));
  }
  const double seconds = milliseconds_since(start) / 1000;
  std::sort(times.begin(), times.end());
  std::printf("%.0f appends a second, one Step event each: median %.3f ms, 99 %% %.3f ms, longest %.1f ms\n",
              static_cast<double>(times.size()) / seconds, times[times.size() / 2],
              times[times.size() * 99 / 100], times.back());
}

}  // namespace
}  // namespace weft::broker

int main(int count, char** arguments) {
  namespace fs = std::filesystem;
  const fs::path base = count > 1 ? fs::path(arguments[1]) : fs::temp_directory_path();
  const fs::path folder = base / ("weft-bench-store-" + std::to_string(::getpid()));
  fs::create_directories(folder);
  weft::broker::measure_opening(folder,
                                count > 2 ? weft::bench::number_of<uint64_t>(arguments[2]) : 1'000'000);
  weft::broker::measure_appending(
      folder, count > 3 ? std::max(0.01, weft::bench::number_of<double>(arguments[3])) : 3);
  fs::remove_all(folder);
}

#include "cli/device.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <future>
#include <thread>

#include "cli/commands.h"
#include "peer/backend/cpu/cpu_backend.h"
#include "peer/backend/host/host_memory.h"
#include "peer/backend/null/null_backend.h"
#include "peer/service/measure.h"

namespace weft::cli {
namespace {

constexpr int kThreadsMax = 1024;
constexpr int kSlowerMax = 1000000;
constexpr auto kMeasuringMax = std::chrono::seconds(300);  // a few are usual

Result<std::unique_ptr<peer::Backend>> make_cpu(int threads) {
  return peer::make_cpu_backend({.threads = threads, .pin = true});  // as `weft local --threads N` makes it
}

// The number that the whole text is.
std::optional<int> number_in(std::string_view text, int least, int most) {
  int number = 0;
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), number);
  const bool is_whole = parsed.ec == std::errc() && parsed.ptr == text.data() + text.size();
  return is_whole && number >= least && number <= most ? std::optional(number) : std::nullopt;
}

Result<Device> parse_null(Device device) {
  const std::string_view text = std::string_view(device.text).substr(5);
  const size_t slash = text.find('/');
  WEFT_TRY(device.catalogue, configs::find_device(text.substr(0, slash)));
  if (slash == std::string_view::npos) return device;
  const auto slower = number_in(text.substr(slash + 1), 1, kSlowerMax);
  if (!slower)
    return fail(ErrorCode::InvalidArgument,
                fmt::format("--device {}: after / comes how many times slower it is, from 1 to {}",
                            device.text, kSlowerMax));
  device.slower = *slower;
  return device;
}

plan::Rates null_rates(const Device& device) {
  const double slower = device.slower;
  plan::Rates rates = configs::rates_of(device.catalogue->peak_fp32_flops / slower,
                                        device.catalogue->memory_bandwidth / slower);
  rates.kernel_seconds *= slower;
  return rates;
}

std::vector<dag::Arithmetic> arithmetic_of(const peer::Backend& backend) {
  std::vector<dag::Arithmetic> all;
  for (const dag::Arithmetic each : dag::kArithmetics)
    if (backend.check({.compute = each})) all.push_back(each);
  return all;
}

Bytes offered_of(const peer::Backend& backend, double share) {
  const auto use = backend.memory();
  const double free = use ? static_cast<double>(use->free.value) : 0;
  return {static_cast<int64_t>(share * free)};
}

Result<proto::DeviceReport> measure(const Device& device, const OfferedMemory& offered) {
  WEFT_TRY(const auto backend, make_backend(device));
  proto::DeviceReport report;
  report.device = device.text;
  report.threads = static_cast<uint32_t>(device.threads);
  report.fingerprint = backend->numerics_fingerprint();
  report.traits = backend->traits();
  report.arithmetic = arithmetic_of(*backend);
  if (device.catalogue) {
    report.rates = null_rates(device);
    report.memory = offered.device.value_or(device.catalogue->memory);
    return report;
  }
  report.memory = offered.device.value_or(offered_of(*backend, offered.share));
  if (device.cuda) report.host_memory = offered.host.value_or(available_memory(offered.share));
  if (report.memory.value <= 0)
    return fail(ErrorCode::ResourceExhausted,
                "no memory is free on this machine: say what may be taken, as --memory 4GiB");
  WEFT_TRY(report.rates, peer::measure_rates(*backend, report.memory));
  // A GPU's libraries load much of their code when it is first used: what is free is free beside that.
  if (device.cuda && !offered.device) {
    WEFT_TRY_STATUS(backend->synchronize());
    report.memory = std::min(report.memory, offered_of(*backend, offered.share));
  }
  return report;
}

}  // namespace

Result<Device> parse_device(const std::string& text) {
  Device device{.text = text, .threads = 0, .cuda = {}, .catalogue = {}, .slower = 1};
  if (text == "cpu") return device;
  if (text.starts_with("cpu:")) {
    const auto threads = number_in(std::string_view(text).substr(4), 1, kThreadsMax);
    if (!threads)
      return fail(
          ErrorCode::InvalidArgument,
          fmt::format("--device {}: after cpu: comes a number of threads from 1 to {}", text, kThreadsMax));
    device.threads = *threads;
    return device;
  }
  if (text.starts_with("cuda")) {
    device.cuda = parse_cuda(text);
    if (device.cuda) return device;
    return fail(ErrorCode::InvalidArgument, "--device " + text + ": after cuda: comes which GPU, from 0");
  }
  if (text.starts_with("null:")) return parse_null(std::move(device));
  return fail(ErrorCode::InvalidArgument,
              "--device " + text + ": there are cpu, cpu:N, cuda, cuda:N, null:TYPE and null:TYPE/TIMES");
}

Result<std::unique_ptr<peer::Backend>> make_backend(const Device& device) {
  if (device.cuda) return make_cuda(*device.cuda);
  if (!device.catalogue) return make_cpu(device.threads);
  peer::BackendTraits traits;
  {
    // Graphs are lowered as for the processors that such a device runs beside.
    WEFT_TRY(const auto cpu, peer::make_cpu_backend({.threads = 1, .pin = false}));
    traits = cpu->traits();
  }
  return peer::make_null_backend({.type = device.catalogue->name,
                                  .rates = null_rates(device),
                                  .memory = device.catalogue->memory,
                                  .traits = traits,
                                  .wait = [](Duration duration) { std::this_thread::sleep_for(duration); }});
}

Result<proto::DeviceReport> describe(const Device& device, const OfferedMemory& offered) {
  // On a thread that ends: a backend may bind the one that drives it to a processor, and what is started
  // later would inherit that. A device that hangs keeps the thread.
  std::promise<Result<proto::DeviceReport>> promise;
  auto report = promise.get_future();
  std::thread measuring([device, offered, promise = std::move(promise)]() mutable {
    promise.set_value(measure(device, offered));
  });
  if (report.wait_for(kMeasuringMax) == std::future_status::ready) {
    measuring.join();
    return report.get();
  }
  measuring.detach();
  return fail(ErrorCode::DeviceLost, fmt::format("{}: it has not answered for {} s while it was measured",
                                                 device.text, kMeasuringMax.count()));
}

Bytes available_memory() { return peer::free_memory().value_or(Bytes{}); }
Bytes available_memory(double share) {
  return Bytes{static_cast<int64_t>(share * static_cast<double>(available_memory().value))};
}

}  // namespace weft::cli

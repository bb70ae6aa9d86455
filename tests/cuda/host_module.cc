// The cuda module as `weft` opens it, over a HostDevice: the whole way from `--device cuda` to kernels,
// without a GPU. WEFT_HOST_DEVICE: "lose_at=N", "lose_when=FILE", "hang_while=FILE",
// "works_when=FILE", "memory=BYTES", "display=1", "seed=N", "random=1", by commas.
#include <cstdlib>
#include <sstream>

#include "peer/backend/cuda/cuda_backend.h"
#include "peer/backend/module.h"
#include "tests/cuda/host_device.h"

namespace {

using weft::test::HostDeviceOptions;

HostDeviceOptions options_from(const char* text) {
  HostDeviceOptions options{.pace = HostDeviceOptions::Pace::Early};
  std::istringstream all(text == nullptr ? "" : text);
  for (std::string one; std::getline(all, one, ',');) {
    const size_t equals = one.find('=');
    if (equals == std::string::npos) continue;
    const uint64_t number = std::strtoull(one.c_str() + equals + 1, nullptr, 10);
    const std::string name = one.substr(0, equals);
    if (name == "lose_at") options.lose_at = number;
    if (name == "lose_when") options.lose_when = one.substr(equals + 1);
    if (name == "hang_while") options.hang_while = one.substr(equals + 1);
    if (name == "works_when") options.works_when = one.substr(equals + 1);
    if (name == "memory") options.memory = weft::Bytes{static_cast<int64_t>(number)};
    if (name == "display") options.has_display = number != 0;
    if (name == "seed") options.seed = number;
    if (name == "random" && number != 0) options.pace = HostDeviceOptions::Pace::Random;
  }
  return options;
}

weft::Result<std::unique_ptr<weft::peer::Backend>> make(const weft::peer::ModuleOptions& options) {
  if (options.device != 0)
    return weft::fail(weft::ErrorCode::NotFound, "host device: there is one, number 0");
  return weft::peer::make_cuda_backend(
      std::make_shared<weft::test::HostDevice>(options_from(std::getenv("WEFT_HOST_DEVICE"))));
}

}  // namespace

extern "C" __attribute__((visibility("default"))) const weft::peer::BackendModule weft_backend_module;
const weft::peer::BackendModule weft_backend_module{weft::peer::BackendModule::kFormat, WEFT_BUILD_ID, make};

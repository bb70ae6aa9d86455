#include "peer/desktop/gpu_heat.h"

#include <dlfcn.h>

#include <algorithm>

namespace weft::peer {

// The functions of NVML that are used, as its manual declares them; 0 is success everywhere.
struct GpuHeat::Library {
  void* handle = nullptr;
  int (*init)() = nullptr;
  int (*shutdown)() = nullptr;
  int (*count)(unsigned*) = nullptr;
  int (*device)(unsigned, void**) = nullptr;
  int (*temperature)(void*, int sensor, unsigned*) = nullptr;

  template <typename F>
  bool take(F& into, const char* name) const {
    into = reinterpret_cast<F>(::dlsym(handle, name));
    return into != nullptr;
  }
  bool open(const std::string& path) {
    handle = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    return handle != nullptr && take(init, "nvmlInit_v2") && take(shutdown, "nvmlShutdown") &&
           take(count, "nvmlDeviceGetCount_v2") && take(device, "nvmlDeviceGetHandleByIndex_v2") &&
           take(temperature, "nvmlDeviceGetTemperature");
  }
};

std::unique_ptr<GpuHeat> GpuHeat::open(const std::string& library) {
  auto opened = std::make_unique<Library>();
  const bool works = opened->open(library) && opened->init() == 0;
  if (works) return std::unique_ptr<GpuHeat>(new GpuHeat(std::move(opened)));
  if (opened->handle != nullptr) ::dlclose(opened->handle);
  return nullptr;
}

GpuHeat::GpuHeat(std::unique_ptr<Library> library) : library_(std::move(library)) {}

GpuHeat::~GpuHeat() {
  library_->shutdown();
  ::dlclose(library_->handle);
}

std::optional<MannersReadings::Heat> GpuHeat::hottest() const {
  constexpr unsigned kDevicesMax = 64;
  constexpr int kOfTheChip = 0;
  unsigned count = 0;
  if (library_->count(&count) != 0) return std::nullopt;
  std::optional<MannersReadings::Heat> hottest;
  for (unsigned i = 0; i < std::min(count, kDevicesMax); ++i) {
    void* device = nullptr;
    unsigned celsius = 0;
    if (library_->device(i, &device) != 0 || library_->temperature(device, kOfTheChip, &celsius) != 0)
      continue;
    if (!hottest || celsius > hottest->celsius)
      hottest = MannersReadings::Heat{static_cast<double>(celsius), "GPU " + std::to_string(i)};
  }
  return hottest;
}

}  // namespace weft::peer

// The door of weft_backend_cuda.so: the only symbol that it shows.
#include "peer/backend/module.h"

#include "peer/backend/cuda/cuda_backend.h"
#include "peer/backend/cuda/cuda_device.h"

namespace {

weft::Result<std::unique_ptr<weft::peer::Backend>> make(const weft::peer::ModuleOptions& options) {
  WEFT_TRY(auto device, weft::peer::cuda::open_cuda_device({.index = options.device}));
  return weft::peer::make_cuda_backend(std::move(device));
}

}  // namespace

extern "C" {
// NOLINTNEXTLINE(readability-identifier-naming): whoever opens the module looks it up by this name
extern __attribute__((visibility("default"))) const weft::peer::BackendModule weft_backend_module;
const weft::peer::BackendModule weft_backend_module{
    .format = weft::peer::BackendModule::kFormat, .build_id = WEFT_BUILD_ID, .make = make};
}

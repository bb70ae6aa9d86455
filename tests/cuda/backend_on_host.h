// The cuda backend over a HostDevice, as tests want it.
#pragma once

#include <gtest/gtest.h>

#include <memory>

#include "peer/backend/cuda/cuda_backend.h"
#include "tests/cuda/host_device.h"

namespace weft::test {

// `staging` small enough that some tensors of a test go through it and others do not.
inline std::unique_ptr<peer::Backend> cuda_on(std::shared_ptr<HostDevice> device,
                                              Bytes staging = {16 << 10}) {
  auto backend =
      peer::make_cuda_backend(std::move(device), {.staging = staging, .pinned_uploads = Bytes{64 << 10}});
  EXPECT_TRUE(backend.has_value()) << backend.error().message;
  return std::move(*backend);
}
inline std::unique_ptr<peer::Backend> cuda_on_host(HostDeviceOptions options = {}) {
  return cuda_on(std::make_shared<HostDevice>(options));
}

}  // namespace weft::test

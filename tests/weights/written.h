// Files of tensors for tests of weights/.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "base/rng.h"
#include "dag/tensor.h"
#include "data/safetensors.h"
#include "weights/forms.h"

namespace weft::weights {

// A folder of the test's own, empty at first.
inline std::filesystem::path own_folder() {
  const auto* test = testing::UnitTest::GetInstance()->current_test_info();
  const std::filesystem::path folder =
      std::filesystem::path(WEFT_TEST_TMP) / (std::string(test->test_suite_name()) + "." + test->name());
  std::filesystem::create_directories(folder);
  return folder;
}
inline std::filesystem::path fresh_folder() {
  std::filesystem::remove_all(own_folder());
  return own_folder();
}

// Any bits; of halves and floats numbers that are finite.
inline dag::Tensor random_tensor(const dag::TensorSpec& spec, Rng& rng) {
  dag::Tensor tensor(spec);
  const auto bytes = tensor.mutable_bytes();
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(rng.below(256));
  const auto count = static_cast<size_t>(tensor.element_count());
  if (spec.dtype == dag::DType::F32)
    for (float& value : tensor.mutable_as<float>()) value = static_cast<float>(rng.below(2'000'001)) - 1e6f;
  if (dag::is_half(spec.dtype))
    for (size_t i = 0; i < count; ++i) {
      const float value = static_cast<float>(rng.below(2001)) / 100 - 10;
      tensor.mutable_as<uint16_t>()[i] =
          spec.dtype == dag::DType::F16 ? dag::f16_from_float(value) : dag::bf16_from_float(value);
    }
  return tensor;
}

// A safetensors file with tensors t0, t1, ...
class Written {
 public:
  Written(const std::filesystem::path& name, const std::vector<dag::Tensor>& tensors)
      : path_(name.is_absolute() ? name : own_folder() / name) {
    std::vector<data::NamedSpec> specs;
    for (size_t i = 0; i < tensors.size(); ++i) specs.push_back({"t" + std::to_string(i), tensors[i].spec()});
    std::ofstream out(path_, std::ios::binary | std::ios::trunc);
    const Status written = data::write_safetensors(
        specs,
        [&](const std::string& tensor, const data::ByteSink& sink) {
          return sink(tensors[std::stoul(tensor.substr(1))].bytes());
        },
        [&](std::span<const std::byte> bytes) {
          out.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
          return Status{};
        });
    out.close();
    EXPECT_TRUE(written.has_value() && out.good());
    file_ = *data::File::open(path_);
    const auto files = data::TensorFiles::open(path_);
    for (size_t i = 0; i < tensors.size(); ++i) {
      const auto& place = files->tensors().at("t" + std::to_string(i));
      stored_.push_back({place.spec, place.offset});
    }
  }
  const std::filesystem::path& path() const { return path_; }
  const data::File& file() const { return *file_; }
  const StoredTensor& stored(size_t i) const { return stored_[i]; }

 private:
  std::filesystem::path path_;
  std::shared_ptr<const data::File> file_;
  std::vector<StoredTensor> stored_;
};

}  // namespace weft::weights

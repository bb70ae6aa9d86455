// Each form of a tensor beside the same made the plain way, and its hash.
#include "weights/forms.h"

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <numeric>

#include "base/rng.h"
#include "storage/sha256.h"
#include "tests/weights/written.h"

namespace weft::weights {
namespace {

std::vector<std::byte> all_of(const data::File& file, const StoredTensor& tensor, Form form) {
  std::vector<std::byte> bytes;
  const Status read = read_form(file, tensor, form, [&](std::span<const std::byte> piece) {
    EXPECT_LE(piece.size(), size_t{1} << 20);
    bytes.insert(bytes.end(), piece.begin(), piece.end());
    return Status{};
  });
  EXPECT_TRUE(read.has_value()) << read.error().message;
  return bytes;
}

// Element by element.
std::vector<std::byte> plain(const dag::Tensor& tensor, Form form) {
  dag::Tensor value = tensor;
  if (form == Form::Transposed || form == Form::TransposedWidened) {
    const int64_t rows = tensor.shape()[0], columns = tensor.shape()[1];
    const auto size = static_cast<size_t>(dag::element_size(tensor.dtype()));
    value = dag::Tensor({tensor.dtype(), {columns, rows}});
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t c = 0; c < columns; ++c)
        std::memcpy(value.mutable_bytes().data() + static_cast<size_t>(c * rows + r) * size,
                    tensor.bytes().data() + static_cast<size_t>(r * columns + c) * size, size);
  }
  if (form == Form::Widened || form == Form::TransposedWidened) value = dag::widen_half(value);
  return {value.bytes().begin(), value.bytes().end()};
}

TEST(Forms, AreWhatTheyAreMadeThePlainWay) {
  Rng rng(7, 1);
  const std::vector<dag::TensorSpec> specs{{dag::DType::F32, {37, 53}},      {dag::DType::BF16, {64, 33}},
                                           {dag::DType::F16, {5, 1000}},     {dag::DType::F64, {3, 2}},
                                           {dag::DType::I8, {40, 70}},       {dag::DType::Bool, {9, 9}},
                                           {dag::DType::BF16, {1001}},       {dag::DType::F32, {}},
                                           {dag::DType::F32, {1, 8}},        {dag::DType::F16, {2, 3, 4}},
                                           {dag::DType::BF16, {1500, 1100}}, {dag::DType::I64, {1 << 18}},
                                           {dag::DType::F32, {3, 1 << 17}},  {dag::DType::F32, {1 << 17, 3}}};
  std::vector<dag::Tensor> tensors;
  for (const dag::TensorSpec& spec : specs) tensors.push_back(random_tensor(spec, rng));
  const Written written("forms.safetensors", tensors);
  for (size_t i = 0; i < tensors.size(); ++i) {
    const std::vector<Form> forms = forms_of(specs[i]);
    const auto digests = digests_of(written.file(), written.stored(i), {});
    ASSERT_TRUE(digests.has_value()) << digests.error().message;
    ASSERT_EQ(digests->size(), forms.size());
    for (size_t f = 0; f < forms.size(); ++f) {
      const auto bytes = all_of(written.file(), written.stored(i), forms[f]);
      EXPECT_EQ(bytes.size(), bytes_of(specs[i], forms[f]));
      EXPECT_TRUE(bytes == plain(tensors[i], forms[f])) << to_string(specs[i]) << " form " << f;
      EXPECT_EQ(to_hex((*digests)[f]), storage::sha256_hex(std::span<const std::byte>(bytes)));
    }
  }
}

TEST(Forms, OfEachTensorAreThoseThatDiffer) {
  using enum Form;
  using Forms = std::vector<Form>;
  EXPECT_EQ(forms_of({dag::DType::F32, {4}}), Forms{AsStored});
  EXPECT_EQ(forms_of({dag::DType::F32, {4, 5}}), (Forms{AsStored, Transposed}));
  EXPECT_EQ(forms_of({dag::DType::F32, {1, 5}}), Forms{AsStored});
  EXPECT_EQ(forms_of({dag::DType::BF16, {4}}), (Forms{AsStored, Widened}));
  EXPECT_EQ(forms_of({dag::DType::F16, {4, 5}}), (Forms{AsStored, Widened, Transposed, TransposedWidened}));
  EXPECT_EQ(forms_of({dag::DType::F32, {4, 5, 6}}), Forms{AsStored});
}

// More than a block of columns: parts of each row are read.
TEST(Forms, OfALargeMatrixTakeBoundedMemory) {
  const dag::TensorSpec spec{dag::DType::I8, {40'000, 2'000}};  // 80 MB
  dag::Tensor tensor(spec);
  auto bytes = tensor.mutable_as<int8_t>();
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<int8_t>(i * 2654435761u >> 24);
  const Written written("large.safetensors", {tensor});
  uint64_t at = 0;
  bool is_equal = true;
  const Status read =
      read_form(written.file(), written.stored(0), Form::Transposed, [&](std::span<const std::byte> piece) {
        for (const std::byte byte : piece) {
          const uint64_t column = at / 40'000, row = at % 40'000;
          is_equal = is_equal && static_cast<int8_t>(byte) == bytes[row * 2'000 + column];
          ++at;
        }
        return Status{};
      });
  EXPECT_TRUE(read.has_value());
  EXPECT_EQ(at, 80'000'000u);
  EXPECT_TRUE(is_equal);
}

TEST(Forms, StopWhereTheyAreToldTo) {
  Rng rng(7, 2);
  const Written written("stop.safetensors", {random_tensor({dag::DType::F32, {64, 64}}, rng)});
  std::stop_source stop;
  stop.request_stop();
  const auto digests = digests_of(written.file(), written.stored(0), stop.get_token());
  ASSERT_FALSE(digests.has_value());
  EXPECT_EQ(digests.error().code, ErrorCode::Cancelled);
}

TEST(Forms, OfAFileThatWasCutOffAreAnError) {
  Rng rng(7, 3);
  const Written written("cut.safetensors", {random_tensor({dag::DType::F32, {64, 64}}, rng)});
  std::filesystem::resize_file(written.path(), 4000);
  for (const Form form : {Form::AsStored, Form::Transposed}) {
    const Status read = read_form(written.file(), written.stored(0), form,
                                  [](std::span<const std::byte>) { return Status{}; });
    ASSERT_FALSE(read.has_value());
    EXPECT_EQ(read.error().code, ErrorCode::Corrupted) << read.error().message;
  }
}

}  // namespace
}  // namespace weft::weights

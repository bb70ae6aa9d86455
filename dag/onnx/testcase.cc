#include "dag/onnx/testcase.h"

#include <vector>

#include "dag/onnx/external.h"
#include "dag/onnx/scan.h"
#include "dag/onnx/tensor_proto.h"

namespace weft::onnx {

Result<NamedTensor> read_tensor_file(const std::filesystem::path& path, const ImportLimits& limits) {
  WEFT_TRY(const File file, open_file(path));
  if (file.size() > limits.file_bytes_max)
    return fail(ErrorCode::ResourceExhausted, path.string() + " is too large");
  std::vector<std::byte> bytes(static_cast<size_t>(file.size()));
  WEFT_TRY_STATUS(file.read_at(0, bytes));
  const auto within = [&](const Error& error) { return fail(error.within(path.string())); };
  if (const auto counts = scan_tensor(bytes, limits); !counts) return within(counts.error());
  pb::TensorProto proto;
  if (!proto.ParseFromArray(bytes.data(), static_cast<int>(bytes.size())))
    return fail(ErrorCode::Corrupted, path.string() + " holds no tensor");
  auto tensor = tensor_from_proto(proto, limits);
  if (!tensor) return within(tensor.error());
  return NamedTensor{proto.name(), std::move(*tensor)};
}

}  // namespace weft::onnx

#include "data/safetensors.h"

#include "base/check.h"
#include "tests/fuzz/files.h"
#include "tests/fuzz/input.h"
#include "tests/fuzz/targets.h"

namespace weft::fuzz {
namespace {

// What was read is written, and read again, with the same bits.
void read_and_write(std::span<const std::byte> bytes) {
  const MemoryFile file(bytes);
  const auto read = data::TensorFiles::open(file.path());
  if (!read) return;
  std::vector<data::NamedSpec> specs;
  for (const auto& [name, place] : read->tensors()) specs.push_back({name, place.spec});
  std::vector<std::byte> written;
  const Status status = data::write_safetensors(
      specs, [&](const std::string& name, const data::ByteSink& sink) { return read->read(name, sink); },
      [&](std::span<const std::byte> piece) -> Status {
        written.insert(written.end(), piece.begin(), piece.end());
        return {};
      });
  WEFT_CHECK(status.has_value());
  const MemoryFile copy(written);
  const auto again = data::TensorFiles::open(copy.path());
  WEFT_CHECK(again.has_value() && again->tensors().size() == read->tensors().size());
  for (const data::NamedSpec& tensor : specs) {
    const auto one = read->whole(tensor.name), other = again->whole(tensor.name);
    WEFT_CHECK(one && other && one->spec() == other->spec());
    WEFT_CHECK(std::equal(one->bytes().begin(), one->bytes().end(), other->bytes().begin()));
  }
}

void read_header(std::string_view json, uint64_t size) {
  const auto tensors = data::parse_tensor_header(json, size);
  if (!tensors) return;
  uint64_t end = 0;
  for (const data::PlacedTensor& tensor : *tensors) {
    WEFT_CHECK(tensor.offset == end);
    end += static_cast<uint64_t>(tensor.spec.bytes().value);
  }
  WEFT_CHECK(end == size);
}

void read_index(std::string_view json) {
  const auto index = data::parse_tensor_index(json);
  if (!index) return;
  for (const auto& [tensor, file] : *index)
    WEFT_CHECK(!tensor.empty() && file.find('/') == std::string::npos && !file.starts_with('.'));
}

}  // namespace

void safetensors(std::span<const std::byte> bytes) {
  Input input(bytes);
  const uint8_t what = input.byte() % 3;
  if (what == 0) return read_and_write(input.rest());
  if (what == 2) return read_index(as_text(input.rest()));
  const uint64_t size = input.byte();
  read_header(as_text(input.rest()), size);
}

}  // namespace weft::fuzz

#include "tests/support/poison.h"

#include <fstream>
#include <vector>

#include "data/file.h"
#include "data/npy.h"
#include "data/npz_writer.h"
#include "data/zip.h"

namespace weft::test {

Status poison_sample(const std::filesystem::path& npz, const std::string& column, size_t sample,
                     float value) {
  std::vector<data::NpzArray> arrays;
  bool found = false;
  {
    WEFT_TRY(const auto file, data::File::open(npz));
    WEFT_TRY(const auto entries, data::read_zip_directory(*file));
    for (const data::ZipEntry& entry : entries) {
      const auto stream = data::make_stream(file, entry.data_offset, entry.compressed_size, entry.encoding);
      WEFT_TRY(const auto header, data::read_npy_header(*stream));
      dag::Tensor tensor(header.spec);
      WEFT_TRY_STATUS(stream->read(tensor.mutable_bytes()));
      const std::string name = entry.name.substr(0, entry.name.rfind(".npy"));
      if (name == column && header.spec.dtype == dag::DType::F32 && header.spec.rank() > 0 &&
          sample < static_cast<size_t>(header.spec.shape[0])) {
        const auto count =
            static_cast<size_t>(tensor.element_count()) / static_cast<size_t>(header.spec.shape[0]);
        tensor.mutable_as<float>()[sample * count] = value;
        found = true;
      }
      arrays.push_back({name, std::move(tensor)});
    }
  }
  if (!found) return fail(ErrorCode::NotFound, "no such sample of float32 in column '" + column + "'");
  WEFT_TRY(const auto bytes, data::npz_bytes(arrays));
  std::ofstream out(npz, std::ios::binary | std::ios::trunc);
  out.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  out.close();
  if (!out) return fail(ErrorCode::ResourceExhausted, npz.string() + " cannot be written");
  return {};
}

}  // namespace weft::test

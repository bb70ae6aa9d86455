#include "tests/train/reference_files.h"

#include <gtest/gtest.h>
#include <zlib.h>

#include <cmath>
#include <fstream>
#include <iterator>

#include "data/file.h"
#include "data/npy.h"
#include "data/zip.h"

namespace weft::test {
namespace fs = std::filesystem;

fs::path case_folder(const std::string& name) { return fs::path(WEFT_SOURCE_DIR) / "tests/numerics" / name; }

std::string read_file(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  EXPECT_TRUE(in) << path;
  return {std::istreambuf_iterator<char>(in), {}};
}

fs::path unpack_case(const std::string& name, const fs::path& folder, const std::string& packed_model) {
  for (const char* file : {"job.yaml", "data.npz", "start.safetensors"})
    if (fs::exists(case_folder(name) / file)) fs::copy_file(case_folder(name) / file, folder / file);
  gzFile packed = gzopen((case_folder(name) / packed_model).c_str(), "rb");
  EXPECT_NE(packed, nullptr);
  std::ofstream out(folder / "model.onnx", std::ios::binary);
  std::vector<char> piece(1 << 16);
  for (int got = 0; (got = gzread(packed, piece.data(), static_cast<unsigned>(piece.size()))) > 0;)
    out.write(piece.data(), got);
  gzclose(packed);
  return folder / "job.yaml";
}

std::map<std::string, std::vector<double>> read_arrays(const fs::path& npz) {
  std::map<std::string, std::vector<double>> arrays;
  const auto file = data::File::open(npz);
  if (!file) {
    ADD_FAILURE() << file.error().message;
    return arrays;
  }
  const auto entries = data::read_zip_directory(**file);
  if (!entries) {
    ADD_FAILURE() << entries.error().message;
    return arrays;
  }
  for (const data::ZipEntry& entry : *entries) {
    const auto stream = data::make_stream(*file, entry.data_offset, entry.compressed_size, entry.encoding);
    const auto header = data::read_npy_header(*stream);
    if (!header) {
      ADD_FAILURE() << entry.name << ": " << header.error().message;
      continue;
    }
    dag::Tensor tensor(header->spec);
    EXPECT_TRUE(stream->read(tensor.mutable_bytes()).has_value()) << entry.name;
    arrays[entry.name.substr(0, entry.name.size() - 4)] = to_doubles(tensor);
  }
  return arrays;
}

std::vector<double> sketch(const std::vector<double>& values) {
  constexpr size_t kSize = 32;
  if (values.size() <= kSize) return values;
  std::vector<double> sums(kSize);
  for (size_t i = 0; i < values.size(); ++i) {
    uint64_t z = (i + 1) * 0x9E3779B97F4A7C15u;  // SplitMix64: a sign for each sum from its low bits
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    z ^= z >> 31;
    for (size_t row = 0; row < kSize; ++row) sums[row] += (z >> row & 1) != 0 ? values[i] : -values[i];
  }
  for (double& sum : sums) sum /= std::sqrt(static_cast<double>(kSize));
  return sums;
}

}  // namespace weft::test

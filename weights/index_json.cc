// The file that keeps the hashes of an index: JSON lines, for one file's tensors at a time are held as JSON.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "weights/index.h"

namespace weft::weights {
namespace {
using nlohmann::json;

constexpr int kFormat = 1;

Error broken(const std::string& what) { return {ErrorCode::Corrupted, "the file of hashes: " + what}; }

json row_of(const StoredTensor& tensor, const std::vector<Digest>& digests) {
  json hex = json::array();
  for (const Digest& digest : digests) hex.push_back(to_hex(digest));
  return {{"dtype", dag::to_string(tensor.spec.dtype)},
          {"shape", tensor.spec.shape},
          {"offset", tensor.offset},
          {"sha256", std::move(hex)}};
}

Status take_row(const json& row, IndexedFile& file) {
  StoredTensor tensor;
  WEFT_TRY(tensor.spec.dtype, dag::parse_dtype(row.at("dtype").get<std::string>()));
  tensor.spec.shape = row.at("shape").get<dag::Shape>();
  WEFT_TRY_STATUS(dag::checked_element_count(tensor.spec.shape));
  tensor.offset = row.at("offset").get<uint64_t>();
  const auto size = static_cast<uint64_t>(tensor.spec.bytes().value);
  if (size > file.size || tensor.offset > file.size - size) return fail(broken("a tensor beyond its file"));
  std::vector<Digest> digests;
  for (const json& hex : row.at("sha256")) {
    const auto digest = digest_from_hex(hex.get<std::string>());
    if (!digest) return fail(broken("what is no SHA-256"));
    digests.push_back(*digest);
  }
  if (digests.size() != forms_of(tensor.spec).size()) return fail(broken("other forms than a tensor has"));
  file.tensors.push_back(std::move(tensor));
  file.digests.push_back(std::move(digests));
  return {};
}

Result<IndexedFile> file_of(const json& entry) {
  IndexedFile file{.path = entry.at("path").get<std::string>(),
                   .size = entry.at("size").get<uint64_t>(),
                   .modified = entry.at("modified").get<int64_t>(),
                   .tensors = {},
                   .digests = {}};
  for (const json& row : entry.at("tensors")) WEFT_TRY_STATUS(take_row(row, file));
  return file;
}

// A path may be any bytes: then its file is hashed again.
std::string dump(const json& value) {
  return value.dump(-1, ' ', false, json::error_handler_t::replace) + "\n";
}

}  // namespace

std::string first_line() { return dump({{"format", kFormat}}); }

std::string line_of(const IndexedFile& file) {
  json rows = json::array();
  for (size_t i = 0; i < file.tensors.size(); ++i) rows.push_back(row_of(file.tensors[i], file.digests[i]));
  return dump({{"path", file.path.string()},
               {"size", file.size},
               {"modified", file.modified},
               {"tensors", std::move(rows)}});
}

Result<std::vector<IndexedFile>> parse_index(std::string_view lines) {
  if (!lines.starts_with(first_line())) return fail(broken("another format"));
  std::vector<IndexedFile> files;
  try {
    for (size_t at = lines.find('\n') + 1; at < lines.size();) {
      const size_t end = std::min(lines.find('\n', at), lines.size());
      WEFT_TRY(IndexedFile file, file_of(json::parse(lines.substr(at, end - at))));
      files.push_back(std::move(file));
      at = end + 1;
    }
  } catch (const json::exception& error) {
    return fail(broken(error.what()));
  }
  return files;
}

}  // namespace weft::weights

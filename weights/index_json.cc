// The file that keeps the hashes of an index.
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

Result<std::vector<IndexedFile>> take(const json& all) {
  std::vector<IndexedFile> files;
  if (all.at("format").get<int>() != kFormat) return fail(broken("another format"));
  for (const json& entry : all.at("files")) {
    IndexedFile file{.path = entry.at("path").get<std::string>(),
                     .size = entry.at("size").get<uint64_t>(),
                     .modified = entry.at("modified").get<int64_t>(),
                     .tensors = {},
                     .digests = {}};
    for (const json& row : entry.at("tensors")) WEFT_TRY_STATUS(take_row(row, file));
    files.push_back(std::move(file));
  }
  return files;
}

}  // namespace

std::string to_json(const std::vector<IndexedFile>& files) {
  json all = json::array();
  for (const IndexedFile& file : files) {
    json rows = json::array();
    for (size_t i = 0; i < file.tensors.size(); ++i) rows.push_back(row_of(file.tensors[i], file.digests[i]));
    all.push_back({{"path", file.path.string()},
                   {"size", file.size},
                   {"modified", file.modified},
                   {"tensors", std::move(rows)}});
  }
  // A path may be any bytes: then its file is hashed again.
  return json{{"format", kFormat}, {"files", std::move(all)}}.dump(-1, ' ', false,
                                                                   json::error_handler_t::replace);
}

Result<std::vector<IndexedFile>> parse_index(const std::string& text) {
  try {
    return take(json::parse(text));
  } catch (const json::exception& error) {
    return fail(broken(error.what()));
  }
}

}  // namespace weft::weights

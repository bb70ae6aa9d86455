#include "cli/results.h"

#include <algorithm>
#include <map>

#include "cli/progress.h"
#include "cli/say.h"
#include "cli/temporary_folder.h"
#include "dag/onnx/outline.h"
#include "storage/blob_store.h"
#include "storage/files.h"
#include "storage/package.h"
#include "train/adapter_files.h"
#include "train/outer_record.h"
#include "train/weights_file.h"

namespace weft::cli {
namespace fs = std::filesystem;

namespace {

constexpr uint64_t kPredictionBytesMax = uint64_t{64} << 30;

Error wrong(const std::string& what) {
  return {ErrorCode::Corrupted, "what the broker keeps of the job is not whole: " + what};
}

Status fetch_blobs(Client& client, const std::map<Digest, uint64_t>& wanted, storage::BlobStore& store) {
  std::vector<Digest> blobs;
  std::vector<uint64_t> sizes;
  uint64_t total = 0;
  for (const auto& [sha256, size] : wanted) {
    blobs.push_back(sha256);
    sizes.push_back(size);
    total += size;
  }
  TransferLine line("fetching", total);
  return client.get_into(store, blobs, sizes, [&](uint64_t bytes) { line.add(bytes); });
}

Status read_blob(const storage::BlobStore& store, const Digest& sha256, const onnx::ByteSink& sink) {
  constexpr uint64_t kPiece = uint64_t{1} << 20;
  WEFT_TRY(const auto blob, store.open_blob(sha256));
  for (uint64_t at = 0; at < blob->size(); at += kPiece) {
    WEFT_TRY(const storage::BlobView piece, blob->piece(at, std::min(kPiece, blob->size() - at)));
    WEFT_TRY_STATUS(sink(piece.bytes));
  }
  return {};
}

// What travelled with the job's model.
std::optional<std::string> text_beside(const proto::JobResult& result, std::string_view path) {
  for (const proto::PackedFile& file : result.model) {
    if (file.path != path) continue;
    std::string text;
    for (const proto::FilePiece& piece : file.pieces) text += piece.bytes;
    return text;
  }
  return std::nullopt;
}

Result<train::Adapters> adapters_of(const proto::JobResult& result) {
  const auto json = text_beside(result, train::kTravellingAdapters);
  if (!json) return train::Adapters();
  auto adapters = train::parse_adapters(*json);
  if (!adapters) return fail(wrong(adapters.error().message));
  return adapters;
}

}  // namespace

Result<FetchedFiles> fetch_trained(Client& client, const proto::JobResult& result, const fs::path& model,
                                   const fs::path& output, const configs::OutputForm& form) {
  WEFT_TRY(const auto folder, TemporaryFolder::make());
  WEFT_TRY(const std::shared_ptr<storage::BlobStore> store,
           storage::BlobStore::open(folder->path() / "blobs"));
  std::map<std::string, Digest> blob_of;
  std::map<Digest, uint64_t> wanted;
  onnx::TrainedTensors trained;
  for (const proto::TensorReference& tensor : result.tensors) {
    if (!is_weight(tensor.key.slot)) continue;
    blob_of[tensor.key.name] = tensor.sha256;
    wanted[tensor.sha256] = static_cast<uint64_t>(tensor.spec.bytes().value);
    trained.specs[tensor.key.name] = tensor.spec;
  }
  WEFT_TRY_STATUS(fetch_blobs(client, wanted, *store));
  trained.read = [&](const std::string& name, const onnx::ByteSink& sink) {
    return read_blob(*store, blob_of.at(name), sink);
  };
  WEFT_TRY(const onnx::OnnxModel opened, onnx::open_model(model));
  WEFT_TRY(const train::Adapters adapters, adapters_of(result));
  const fs::path adapter = adapters.empty() ? fs::path() : train::adapter_folder(output);
  if (!adapters.empty())
    WEFT_TRY_STATUS(train::write_adapters(adapter, adapters, trained, model.filename().string()));
  WEFT_TRY(onnx::WrittenFiles written, train::write_merged(opened, adapters, train::tensors_of(opened),
                                                           trained, {output, form, model.parent_path()}));
  return FetchedFiles{std::move(written), adapter};
}

std::vector<std::string> merged_types() { return {"float32", "float16", "bfloat16"}; }

configs::OutputForm merged_as(const std::string& type) {
  configs::OutputForm form;
  if (type == "float32") form.merged = dag::DType::F32;
  if (type == "float16") form.merged = dag::DType::F16;
  if (type == "bfloat16") form.merged = dag::DType::BF16;
  return form;
}

Status write_also(const proto::JobResult& result, const fs::path& trained, const fs::path& weights) {
  std::vector<std::string> learnt;
  for (const proto::TensorReference& tensor : result.tensors)
    if (is_weight(tensor.key.slot)) learnt.push_back(tensor.key.name);
  WEFT_TRY(const size_t count, train::write_weights(trained, learnt, weights));
  say(stderr, "wrote {} with {} tensors\n", weights.string(), count);
  return {};
}

Result<std::optional<storage::OuterRecord>> record_of(const proto::JobResult& result) {
  const auto text = text_beside(result, train::kTravellingRecord);
  if (!text) return std::optional<storage::OuterRecord>();
  auto record = storage::parse_outer_record(*text, std::string(train::kTravellingRecord));
  if (!record) return fail(wrong(record.error().message));
  return std::optional(*std::move(record));
}

Result<fs::path> fetch_model(Client& client, const proto::JobResult& result, const fs::path& folder) {
  WEFT_TRY(const auto store, storage::BlobStore::open(folder / "blobs"));
  std::map<Digest, uint64_t> wanted;
  for (const proto::PackedFile& file : result.model)
    for (const proto::FilePiece& piece : file.pieces)
      if (piece.sha256) wanted[*piece.sha256] = piece.size;
  WEFT_TRY_STATUS(fetch_blobs(client, wanted, *store));
  fs::path model;
  for (const proto::PackedFile& file : result.model) {  // paths stay beneath: the codec has seen to it
    std::vector<storage::Piece> pieces;
    for (const proto::FilePiece& piece : file.pieces) {
      const auto bytes = std::as_bytes(std::span(piece.bytes));
      pieces.push_back({.bytes = {bytes.begin(), bytes.end()}, .sha256 = piece.sha256, .size = piece.size});
    }
    const fs::path target = folder / "files" / file.path;
    WEFT_TRY_STATUS(storage::unpack(pieces, *store, target));
    if (model.empty()) model = target;
  }
  if (model.empty()) return fail(wrong("the submitted model is missing"));
  return model;
}

Result<std::vector<PredictedOutput>> arrange_predictions(const proto::JobResult& result,
                                                         const std::vector<std::string>& order) {
  std::map<std::string, std::map<uint32_t, const proto::TensorReference*>> by_name;
  uint32_t microbatches = 0;
  for (const proto::PredictionReport& report : result.predictions) {
    microbatches = std::max(microbatches, report.microbatch + 1);
    for (const proto::TensorReference& output : report.outputs)
      by_name[output.key.name][report.microbatch] = &output;
  }
  if (by_name.empty()) return fail(wrong("it has no predictions"));
  std::vector<std::string> names;
  for (const std::string& name : order)
    if (by_name.contains(name)) names.push_back(name);
  for (const auto& [name, parts] : by_name)
    if (std::find(order.begin(), order.end(), name) == order.end()) names.push_back(name);

  std::vector<PredictedOutput> outputs;
  for (const std::string& name : names) {
    const auto& parts = by_name.at(name);
    if (parts.size() != microbatches)
      return fail(wrong("output '" + name + "' has " + std::to_string(parts.size()) + " of " +
                        std::to_string(microbatches) + " microbatches"));
    const dag::TensorSpec& spec = parts.begin()->second->spec;
    if (spec.shape.empty() || spec.shape[0] < 1)
      return fail(ErrorCode::Unsupported,
                  "output '" + name + "' is " + to_string(spec) + ": its first axis is not the batch");
    const auto rows = static_cast<uint64_t>(spec.shape[0]);
    if (result.sample_count == 0 || result.sample_count > rows * microbatches)
      return fail(wrong(std::to_string(rows * microbatches) + " rows of '" + name + "' for " +
                        std::to_string(result.sample_count) + " samples"));
    PredictedOutput output{.name = name,
                           .spec = spec,
                           .blobs = {},
                           .microbatch_size = static_cast<uint64_t>(spec.bytes().value)};
    output.spec.shape[0] = static_cast<int64_t>(result.sample_count);
    const auto elements = dag::checked_element_count(output.spec.shape);
    if (!elements || static_cast<uint64_t>(output.spec.bytes().value) > kPredictionBytesMax)
      return fail(ErrorCode::ResourceExhausted, "output '" + name + "' of all samples is " +
                                                    to_string(output.spec) + ": too large for one array");
    for (const auto& [microbatch, part] : parts) {
      if (part->spec != spec) return fail(wrong("output '" + name + "' changes its shape"));
      output.blobs.push_back(part->sha256);
    }
    outputs.push_back(std::move(output));
  }
  return outputs;
}

namespace {

// The rows of one output, written in their order, in whichever they come.
Status fetch_rows(Client& client, const PredictedOutput& output, size_t array, data::NpzRows& rows) {
  uint64_t left = static_cast<uint64_t>(output.spec.bytes().value);
  size_t next = 0;
  std::map<size_t, std::vector<std::byte>> waiting;
  const std::vector<uint64_t> sizes(output.blobs.size(), output.microbatch_size);
  return client.get(output.blobs, sizes, [&](size_t i, std::vector<std::byte> bytes) -> Status {
    waiting[i] = std::move(bytes);
    for (auto at = waiting.find(next); at != waiting.end(); at = waiting.find(++next)) {
      const auto count = static_cast<size_t>(std::min<uint64_t>(left, at->second.size()));
      WEFT_TRY_STATUS(rows.append(array, std::span(at->second).first(count)));  // the rest is padding
      left -= count;
      waiting.erase(at);
    }
    return {};
  });
}

}  // namespace

Status fetch_predictions(Client& client, const proto::JobResult& result,
                         const std::vector<std::string>& order, const fs::path& path) {
  WEFT_TRY(const auto outputs, arrange_predictions(result, order));
  std::vector<data::NpzRows::Array> arrays;
  arrays.reserve(outputs.size());
  for (const PredictedOutput& output : outputs) arrays.push_back({output.name, output.spec});
  const auto write = [&](const storage::Files::PlacedSink& sink) -> Status {
    WEFT_TRY(data::NpzRows rows, data::NpzRows::create(arrays, sink));
    for (size_t i = 0; i < outputs.size(); ++i) WEFT_TRY_STATUS(fetch_rows(client, outputs[i], i, rows));
    return rows.finish();
  };
  storage::Files files;
  return files.write_atomic_placed(path, write, {.mode = 0644});
}

}  // namespace weft::cli

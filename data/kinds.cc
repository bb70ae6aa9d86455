#include "data/kinds.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <span>
#include <system_error>

#include "data/file.h"
#include "data/photo.h"

namespace weft::data {
namespace fs = std::filesystem;

namespace {

constexpr size_t kHeadSize = 4096;

bool starts(std::string_view head, std::string_view magic, size_t at = 0) {
  return head.size() >= at + magic.size() && head.substr(at, magic.size()) == magic;
}

// The first entry's name tells: numpy's is an array, PyTorch's lies in a folder of the archive.
FileKind kind_of_zip(std::string_view head) {
  if (head.size() < 30) return FileKind::Zip;
  const size_t size = static_cast<unsigned char>(head[26]) | size_t{static_cast<unsigned char>(head[27])}
                                                                 << 8;
  const std::string_view name = head.substr(30, size);
  if (name.ends_with(".npy")) return FileKind::Npz;
  if (name.ends_with("data.pkl") || name.ends_with(".format_version") || name.ends_with("/version"))
    return FileKind::Torch;
  return FileKind::Zip;
}

// The fields of ONNX's ModelProto in the order that writers have: its version (1), then who wrote it (2) or
// which operators it is made of (8), or the graph (7).
bool looks_like_onnx(std::string_view head) {
  if (head.size() < 4 || head[0] != 0x08) return false;
  const auto version = static_cast<unsigned char>(head[1]);
  return version >= 1 && version < 64 &&
         (head[2] == 0x12 || head[2] == 0x1A || head[2] == 0x3A || head[2] == 0x42);
}

bool is_text(std::string_view head) {
  return std::none_of(head.begin(), head.end(), [](char c) {
    const auto byte = static_cast<unsigned char>(c);
    return byte < 0x20 && c != '\n' && c != '\r' && c != '\t' && c != '\f';
  });
}

bool has_job_key(std::string_view head) {
  for (const std::string_view key : {"model:", "task:", "data:", "inputs:", "optimizer:", "format:"})
    if (starts(head, key) || head.find("\n" + std::string(key)) != std::string_view::npos) return true;
  return false;
}

// Two lines with equally many separators, at least one.
bool looks_like_csv(std::string_view head) {
  const size_t first = head.find('\n');
  if (first == std::string_view::npos) return false;
  const std::string_view second = head.substr(first + 1, head.find('\n', first + 1) - first - 1);
  const auto count = [](std::string_view line, char c) { return std::count(line.begin(), line.end(), c); };
  return std::any_of(std::begin(",;\t"), std::end(",;\t") - 1, [&](char c) {
    return count(head.substr(0, first), c) > 0 && count(head.substr(0, first), c) == count(second, c);
  });
}

// An object and, behind a line's end, another one.
bool looks_like_jsonl(std::string_view head) {
  const size_t end = head.find('\n');
  return end != std::string_view::npos && starts(head, "{\"") && head[end - 1] == '}' &&
         starts(head, "{\"", end + 1);
}

FileKind kind_of_text(std::string_view head, const std::string& extension) {
  if (extension == ".csv" || extension == ".tsv") return FileKind::Csv;
  if (extension == ".jsonl" || extension == ".ndjson" || looks_like_jsonl(head)) return FileKind::Jsonl;
  if (extension == ".yaml" || extension == ".yml" || has_job_key(head)) return FileKind::JobFile;
  return looks_like_csv(head) ? FileKind::Csv : FileKind::Text;
}

FileKind kind_of_bytes(std::string_view head, const std::string& extension) {
  static constexpr struct {
    std::string_view magic;
    FileKind kind;
  } kMagics[] = {{"\x93NUMPY", FileKind::Npy},          {"PAR1", FileKind::Parquet},
                 {"\x89HDF\r\n\x1A\n", FileKind::Hdf5}, {"\x1F\x8B", FileKind::Gzip},
                 {"\x80\x02", FileKind::Pickle},        {"\x80\x03", FileKind::Pickle},
                 {"\x80\x04", FileKind::Pickle},        {"\x80\x05", FileKind::Pickle}};
  for (const auto& row : kMagics)
    if (starts(head, row.magic))
      return row.kind == FileKind::Pickle && (extension == ".pt" || extension == ".pth") ? FileKind::Torch
                                                                                         : row.kind;
  if (starts(head, "PK\x03\x04")) return kind_of_zip(head);
  if (starts(head, "ustar", 257)) return FileKind::Tar;
  if (starts(head, "{\"", 8) && head.size() > 16 && head.substr(3, 5) == std::string_view("\0\0\0\0\0", 5))
    return FileKind::Safetensors;
  if (photo_format(std::as_bytes(std::span(head))) != PhotoFormat::Unknown || starts(head, "GIF8"))
    return FileKind::Photo;
  if (starts(head, {"\0\0\x08", 3}) && head.size() > 3 && head[3] >= 1 && head[3] <= 4) return FileKind::Idx;
  const bool is_readable = !head.empty() && is_text(head);
  if (extension == ".onnx" && is_readable && has_job_key(head)) return FileKind::JobFile;
  if (looks_like_onnx(head) || extension == ".onnx") return FileKind::Onnx;
  return is_readable ? kind_of_text(head, extension) : FileKind::Unknown;
}

std::string python(const std::string& text) { return "python3 -c \"" + text + "\""; }

std::optional<std::string> head_of(const fs::path& path) {
  const auto file = File::open(path);
  if (!file) return std::nullopt;
  std::string head(static_cast<size_t>(std::min<uint64_t>((*file)->size(), kHeadSize)), '\0');
  if (!(*file)->read_at(0, std::as_writable_bytes(std::span(head)))) return std::nullopt;
  return head;
}

// Which fields are learnt, by names that are usual.
std::string form_of_documents(const fs::path& path) {
  const std::string head = head_of(path).value_or(std::string());
  const auto has = [&](std::string_view field) {
    return head.find("\"" + std::string(field) + "\"") != std::string::npos;
  };
  for (const char* field : {"messages", "conversations"})
    if (has(field)) return "messages: " + std::string(field);
  if (has("instruction") && has("input") && has("output"))
    return "prompt: [instruction, input], completion: output";
  for (const auto& [prompt, completion] :
       {std::pair("prompt", "completion"), {"instruction", "output"}, {"question", "answer"}})
    if (has(prompt) && has(completion))
      return "prompt: " + std::string(prompt) + ", completion: " + std::string(completion);
  return has("text") ? "text: text" : "text: FIELD";
}

}  // namespace

FileKind kind_of(const fs::path& path) {
  std::error_code code;
  if (fs::is_directory(path, code)) return FileKind::Folder;
  const auto head = head_of(path);
  return head ? kind_of_bytes(*head, path.extension().string()) : FileKind::Unknown;
}

std::string_view name_of(FileKind kind) {
  static constexpr std::string_view kNames[] = {"a file of an unknown kind",
                                                "a folder",
                                                "an ONNX model",
                                                "an npz of arrays",
                                                "an array (.npy)",
                                                "an idx file",
                                                "a picture",
                                                "a file of PyTorch (torch.save)",
                                                "a pickle of Python",
                                                "a table (CSV)",
                                                "a table (Parquet)",
                                                "an HDF5 file",
                                                "weights (safetensors)",
                                                "a tar archive",
                                                "a zip archive",
                                                "a gzipped file",
                                                "a job file (YAML)",
                                                "JSON, an object a line",
                                                "a text"};
  return kNames[static_cast<size_t>(kind)];
}

std::string as_data(FileKind kind, const fs::path& path) {
  const std::string name = path.string();
  const std::string stem = (path.parent_path() / path.stem()).string();
  switch (kind) {
    case FileKind::Folder:
      return "a folder with a folder of photos for each class is read by `{type: images, path: " + name +
             ", size: 224}`";
    case FileKind::Npz:
      return "it is read by `{type: npz, path: " + name + "}`";
    case FileKind::Npy:
      return "it is read by `{type: npy, arrays: {x: " + name + ", y: labels.npy}}`";
    case FileKind::Idx:
      return "it is read by `{type: idx, images: " + name + ", labels: LABELS}`";
    case FileKind::Photo:
      return "photos are read by `{type: images, path: FOLDER, size: 224}`, with a folder in it for each "
             "class";
    case FileKind::Csv:
      return "it is read by `{type: csv, path: " + name +
             ", columns: {x: [a, b], y: label}}`, with the names of its header";
    case FileKind::Parquet:
      return "convert it: " +
             python("import pandas; pandas.read_parquet('" + name + "').to_csv('" + stem +
                    ".csv', index=False)") +
             ", which is read by `{type: csv, path: " + stem + ".csv, columns: {x: [a, b], y: label}}`";
    case FileKind::Hdf5:
      return "convert each array: " +
             python("import h5py, numpy; numpy.save('x.npy', h5py.File('" + name + "')['x'])") +
             ", which is read by `{type: npy, arrays: {x: x.npy}}`";
    case FileKind::Torch:
      return "convert each tensor: " +
             python("import torch, numpy; numpy.save('x.npy', torch.load('" + name + "')['x'].numpy())") +
             ", which is read by `{type: npy, arrays: {x: x.npy}}`";
    case FileKind::Pickle:
      return "write each array with numpy.save, and name them: `{type: npy, arrays: {x: x.npy}}`";
    case FileKind::Tar:
      return "unpack it (tar -xf " + name +
             ") and name the folder: `{type: images, path: FOLDER, size: 224}`";
    case FileKind::Zip:
      return "unpack it (unzip " + name + ") and name what was in it";
    case FileKind::Gzip:
      return "unpack it (gunzip " + name +
             "), or, of MNIST's kind, name it by `{type: idx, images: I.gz, labels: L.gz}`";
    case FileKind::Jsonl:
      return "it is read by `{type: jsonl, path: " + name + ", tokenizer: tokenizer.json, " +
             form_of_documents(path) + ", sequence_length: 1024}`";
    case FileKind::Text:
      return "a text is read by `{type: text, path: " + name + ", sequence_length: 128}`";
    default:
      return {};
  }
}

std::string as_model(FileKind kind, const fs::path& path) {
  switch (kind) {
    case FileKind::Safetensors:
      return "write the model as ONNX; its weights may then come from this file: `init: " + path.string() +
             "`";
    case FileKind::Torch:
    case FileKind::Pickle:
      return "write the model as ONNX, in Python: torch.onnx.export(model, (example_input,), '" +
             path.stem().string() + ".onnx', training=torch.onnx.TrainingMode.TRAINING)";
    case FileKind::JobFile:
      return "a job file names its model: `model: model.onnx`, and is trained by `weft local " +
             path.string() + "`";
    default:
      return "name the ONNX file";
  }
}

std::string as_job(FileKind kind, const fs::path& path) {
  const bool is_model = kind == FileKind::Onnx;
  const std::string data = kind == FileKind::Onnx ? std::string() : as_data(kind, path);
  return std::string("write one, as job.yaml:") + "\n  model: " + (is_model ? path.string() : "model.onnx") +
         "\n  task: train" + "\n  inputs: {x: image}" + "\n  data: {train: {type: npz, path: train.npz}}" +
         "\n  loss: {type: cross_entropy, logits: logits, labels: label}" + "\n  batch_size: 64" +
         "\n  epochs: 1" + "\n  optimizer: {type: adamw}" + (data.empty() ? "" : "\nAs data, " + data);
}

Status check_is_job(const fs::path& path) {
  const FileKind kind = kind_of(path);
  if (kind == FileKind::Unknown || kind == FileKind::JobFile || kind == FileKind::Text) return {};
  return fail(ErrorCode::InvalidArgument, path.string() + ": is " + std::string(name_of(kind)) +
                                              ", not a job file; " + as_job(kind, path));
}

}  // namespace weft::data

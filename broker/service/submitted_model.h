// The model of a submission, read from the pieces that the submission names: nothing of it is put together on
// the disk, and of its weights no more is read than the import asks for.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>

#include "base/digest.h"
#include "dag/onnx/files.h"
#include "dag/onnx/model.h"
#include "proto/messages.h"
#include "storage/blob_store.h"

namespace weft::broker {

class SubmittedModel final : public onnx::ModelFiles {
 public:
  // `path`: of the model, as the submission names it. `blobs` outlives this and all that it opened.
  // REQUIRES: check_submission() let the submission pass.
  SubmittedModel(const proto::SubmitJob& submission, std::string path, const storage::BlobStore& blobs);
  ~SubmittedModel() override;

  Result<std::shared_ptr<const onnx::RandomAccess>> open_model() override;
  Result<std::shared_ptr<const onnx::RandomAccess>> open_beside(const std::string& location) override;

  // The blob that holds these bytes and nothing else, as weft submit cuts a file.
  std::optional<Digest> blob_at(const onnx::OnnxModel::Place& place) const;

 private:
  class PackedFile;
  Result<std::shared_ptr<const onnx::RandomAccess>> open(const std::string& path) const;
  std::string path_beside(const std::string& location) const;

  const std::string path_;
  std::map<std::string, std::shared_ptr<const PackedFile>> files_;
};

}  // namespace weft::broker

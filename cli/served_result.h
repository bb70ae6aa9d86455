// What a job has learnt, as the model of a job that serves: `model: job:3`.
#pragma once

#include <filesystem>
#include <memory>

#include "base/result.h"
#include "cli/client.h"
#include "cli/temporary_folder.h"
#include "proto/hello.h"

namespace weft::cli {

// The model for inference with the weights of that job's last checkpoint, in a folder of its own. The broker
// has these weights, so that a submission of the file sends none of them.
struct ResultFile {
  std::unique_ptr<TemporaryFolder> folder;
  std::filesystem::path model;
};
Result<ResultFile> fetch_result_file(const BrokerOptions& broker, proto::JobNumber job);

}  // namespace weft::cli

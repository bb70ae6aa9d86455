#include "cli/served_result.h"

#include <string>

#include "cli/broker_call.h"
#include "cli/results.h"
#include "cli/say.h"

namespace weft::cli {

Result<ResultFile> fetch_result_file(const BrokerOptions& broker, proto::JobNumber job) {
  WEFT_TRY(const auto session, BrokerCall::open(broker));
  Client& client = *session->client;
  WEFT_TRY(const auto result, client.ask<proto::JobResult>(proto::GetResult{job}));
  if (!result.predictions.empty())
    return fail(ErrorCode::InvalidArgument,
                "model: job " + std::to_string(job) + " has learnt nothing: it made predictions");
  ResultFile file;
  WEFT_TRY(file.folder, TemporaryFolder::make());
  WEFT_TRY(const auto model, fetch_model(client, result, file.folder->path()));
  WEFT_TRY(const auto written, fetch_trained(client, result, model, file.folder->path() / "trained.onnx"));
  file.model = written.inference;
  say(stderr, "the model is what job {} has learnt after step {}\n", job, result.step);
  return file;
}

}  // namespace weft::cli

// What goes over the pipe between the broker and a process that plans: a question, the submission and a
// checkpoint one way; an answer and an assignment for each stage the other.
#include <algorithm>
#include <utility>

#include "broker/service/plan_worker.h"
#include "broker/store/run_plan.h"
#include "proto/codec/codec.h"
#include "proto/codec/planning.h"

namespace weft::broker {

namespace {

// Of an answer, all frames together: a plan lies in the broker's memory as long as its run.
constexpr size_t kAnswerSizeMax = size_t{128} << 20;

template <typename T>
Result<T> receive_message(FramePipe& pipe, size_t size_max = proto::kMessageSizeMax) {
  WEFT_TRY(const auto bytes, pipe.receive(size_max));
  WEFT_TRY(proto::Message message, proto::decode(bytes));
  auto* expected = std::get_if<T>(&message);
  if (expected == nullptr) return fail(ErrorCode::Corrupted, "another message than was to come");
  return std::move(*expected);
}

}  // namespace

Status send_question(FramePipe& pipe, const StartPlanning& request, const PlanTaskAt& task) {
  proto::PlanQuestion question{.task = task.task,
                               .job = request.job,
                               .plan_version = request.plan_version,
                               .microbatch_size = request.microbatch_size,
                               .chosen = request.chosen,
                               .gentler = request.gentler,
                               .is_first = task.is_first,
                               .has_checkpoint = request.checkpoint.has_value(),
                               .may_follow = request.may_follow,
                               .candidates = {},
                               .cluster = request.cluster};
  for (const Candidate& candidate : request.candidates) {
    question.candidates.push_back({candidate.peer, candidate.name, candidate.device, candidate.replica});
    // As they were corrected they may be beyond what a device may say of itself; plans go by the cluster's.
    question.candidates.back().device.rates = {};
  }
  WEFT_TRY_STATUS(pipe.send(proto::encode_question(question)));
  WEFT_TRY_STATUS(pipe.send(proto::bytes_of(request.submission).bytes));
  if (!request.checkpoint) return {};
  return pipe.send(proto::encode(proto::CheckpointReport{.run = request.job,
                                                         .plan_version = request.plan_version,
                                                         .step = request.checkpoint->step,
                                                         .tensors = request.checkpoint->tensors,
                                                         .failure = {},
                                                         .skipped_steps = request.checkpoint->skipped_steps,
                                                         .local = request.checkpoint->local}));
}

Result<ReceivedQuestion> receive_question(FramePipe& pipe) {
  WEFT_TRY(const auto bytes, pipe.receive(proto::kPlanQuestionSizeMax));
  WEFT_TRY(proto::PlanQuestion question, proto::decode_question(bytes));
  ReceivedQuestion received{.task = {question.task, question.is_first},
                            .request = {.job = question.job,
                                        .plan_version = question.plan_version,
                                        .cluster = std::move(question.cluster),
                                        .microbatch_size = question.microbatch_size,
                                        .may_follow = question.may_follow,
                                        .chosen = std::move(question.chosen),
                                        .gentler = question.gentler}};
  for (proto::PlanCandidate& candidate : question.candidates)
    received.request.candidates.push_back(
        {candidate.peer, std::move(candidate.name), std::move(candidate.device), candidate.replica});
  WEFT_TRY(received.request.submission, receive_message<proto::SubmitJob>(pipe));
  if (question.has_checkpoint) {
    WEFT_TRY(auto report, receive_message<proto::CheckpointReport>(pipe));
    received.request.checkpoint = CheckpointCommitted{.job = question.job,
                                                      .step = report.step,
                                                      .tensors = std::move(report.tensors),
                                                      .skipped_steps = report.skipped_steps,
                                                      .local = std::move(report.local)};
  }
  return received;
}

Status send_answer(FramePipe& pipe, const Result<PlanReply>& reply) {
  proto::PlanAnswer answer;
  if (!reply) {
    answer.error = reply.error();
    return pipe.send(proto::encode_answer(answer));
  }
  answer.compresses = reply->compresses;
  answer.arithmetic = reply->arithmetic;
  answer.skips_steps = reply->skips_steps;
  answer.peer_minor = reply->peer_minor;
  answer.serves = reply->serves;
  answer.feed = reply->feed;
  if (reply->run) answer.plan = to_message(*reply->run);
  std::vector<proto::EncodedBytes> frames;
  frames.push_back(proto::share(proto::encode_answer(answer)));
  size_t size = frames.front().bytes.size();
  if (size > proto::kMessageSizeMax)
    return send_answer(pipe, fail(ErrorCode::Unsupported, "what is to be said of its plan takes " +
                                                              std::to_string(size >> 20) + " MiB"));
  for (const PlannedStage& stage : reply->run ? reply->run->stages : std::vector<PlannedStage>{}) {
    frames.push_back(proto::bytes_of(stage.assignment));
    size += frames.back().bytes.size();
    if (size > kAnswerSizeMax)
      return send_answer(
          pipe, fail(ErrorCode::Unsupported, "its stages' graphs take more than " +
                                                 std::to_string(kAnswerSizeMax >> 20) +
                                                 " MiB without their tensors: its constants are too large"));
  }
  for (const proto::EncodedBytes& frame : frames) WEFT_TRY_STATUS(pipe.send(frame.bytes));
  return {};
}

Result<PlanReply> receive_answer(FramePipe& pipe, bool& is_broken) {
  is_broken = true;
  WEFT_TRY(const auto bytes, pipe.receive(proto::kMessageSizeMax));
  WEFT_TRY(proto::PlanAnswer answer, proto::decode_answer(bytes));
  if (answer.error) {
    is_broken = false;
    return fail(std::move(*answer.error));
  }
  PlanReply reply{.compresses = answer.compresses,
                  .arithmetic = answer.arithmetic,
                  .skips_steps = answer.skips_steps,
                  .peer_minor = answer.peer_minor,
                  .serves = std::move(answer.serves),
                  .feed = std::move(answer.feed)};
  if (answer.plan) {
    std::vector<proto::Encoded<proto::AssignStage>> assignments;
    size_t left = kAnswerSizeMax - bytes.size();
    for (size_t s = 0; s < answer.plan->stages.size(); ++s) {
      WEFT_TRY(auto frame, pipe.receive(std::min(left, proto::kMessageSizeMax)));
      left -= frame.size();
      WEFT_TRY(proto::Message message, proto::decode(frame));
      auto* stage = std::get_if<proto::AssignStage>(&message);
      if (stage == nullptr) return fail(ErrorCode::Corrupted, "another message than a stage's assignment");
      assignments.emplace_back(std::make_shared<const proto::AssignStage>(std::move(*stage)),
                               proto::share(std::move(frame)));
    }
    reply.run = from_message(std::move(*answer.plan), std::move(assignments));
    if (reply.run == nullptr) return fail(ErrorCode::Corrupted, "a plan without stages");
  }
  is_broken = false;
  return reply;
}

}  // namespace weft::broker

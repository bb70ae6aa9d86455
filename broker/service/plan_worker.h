// The process that plans a job, `weft plan-worker`: reads what a stranger submitted, its model above all,
// where nothing but that job can come to harm. The broker starts one for each job that is planned
// (plan_process.h), asks it over a socket pair (proto/planning.h), and keeps it while there is room, so that
// planning again needs no import.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <vector>

#include "base/result.h"
#include "base/units.h"
#include "broker/events.h"
#include "broker/service/frame_pipe.h"
#include "proto/planning.h"

namespace weft::broker {

// The end of the socket pair that the process begins with.
inline constexpr int kPlanWorkerSocket = 3;
// What it ends with when memory has run out.
inline constexpr int kPlanWorkerOutOfMemory = 77;

struct PlanWorkerOptions {
  std::filesystem::path blobs{}, jobs{};  // the broker's folders
  std::optional<uint64_t> copy_rate{};    // bytes a second
  Bytes memory_max{};                     // 0: no limit
  int parent = 0;                         // the broker; 0: whoever started it
};

// Answers until the other end closes. The process is limited, and ends with the broker, whatever it is doing.
Status run_plan_worker(const PlanWorkerOptions& options);

// A question as it goes over the pipe, and what it asks about.
struct PlanTaskAt {
  proto::PlanTask task = proto::PlanTask::Check;
  bool is_first = false;
};
Status send_question(FramePipe& pipe, const StartPlanning& request, const PlanTaskAt& task);
struct ReceivedQuestion {
  PlanTaskAt task{};
  StartPlanning request{};
};
Result<ReceivedQuestion> receive_question(FramePipe& pipe);

// And the answer.
struct PlanReply {
  bool compresses = false;
  dag::Arithmetic arithmetic = dag::Arithmetic::F32;
  bool skips_steps = false;
  uint32_t peer_minor = 0;
  std::string serves{};
  std::optional<proto::JobFeed> feed{};
  std::shared_ptr<const PlannedRun> run{};
};
Status send_answer(FramePipe& pipe, const Result<PlanReply>& reply);
// Errors: what planning said, or, with `is_broken` set, what is wrong with the other end.
Result<PlanReply> receive_answer(FramePipe& pipe, bool& is_broken);

}  // namespace weft::broker

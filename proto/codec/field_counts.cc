// Whoever adds a field to a message learns here, from the compiler, that weft.proto and the message's put/get
// pair have to carry it. Then its count goes up by one.
#include <utility>

#include "proto/messages.h"
#include "proto/planning.h"

namespace weft::proto {

// Not in the unnamed namespace: there clang wants the conversion defined.
namespace field_counts {
struct Anything {
  template <typename T>
  operator T() const;  // NOLINT: never called
};
}  // namespace field_counts

namespace {

using field_counts::Anything;

template <typename T, size_t... I>
constexpr bool takes(std::index_sequence<I...>) {
  return requires { T{(void(I), Anything{})...}; };
}
// Whether the aggregate has exactly `count` members.
template <typename T, size_t count>
constexpr bool has_fields = takes<T>(std::make_index_sequence<count>{}) &&
                            !takes<T>(std::make_index_sequence<count + 1>{});

static_assert(has_fields<TokenProof, 2>);
static_assert(has_fields<plan::Rates, 5>);
static_assert(has_fields<plan::UnitRates, 4>);
static_assert(has_fields<dag::BackendTraits, 3>);
static_assert(has_fields<DeviceClass, 2>);
static_assert(has_fields<plan::Seat, 2>);
static_assert(has_fields<DeviceReport, 10>);
static_assert(has_fields<Hello, 9>);
static_assert(has_fields<StageHeld, 3>);
static_assert(has_fields<HelloAck, 6>);
static_assert(has_fields<Refusal, 3>);
static_assert(has_fields<EdgeEnd, 4>);
static_assert(has_fields<StageProgram, 7>);
static_assert(has_fields<TensorReference, 3>);
static_assert(has_fields<BlobSource, 4>);
static_assert(has_fields<LinkRoute, 6>);
static_assert(has_fields<dag::OptimizerSpec, 10>);
static_assert(has_fields<dag::ScheduleSpec, 3>);
static_assert(has_fields<TrainingSpec, 10>);
static_assert(has_fields<AssignStage, 18>);
static_assert(has_fields<Command, 11>);
static_assert(has_fields<GradientNorm, 5>);
static_assert(has_fields<ReleaseStage, 3>);
static_assert(has_fields<RelayInvitation, 3>);
static_assert(has_fields<HeartbeatAck, 1>);
static_assert(has_fields<Heartbeat, 3>);
static_assert(has_fields<StageWork, 4>);
static_assert(has_fields<Drain, 0>);
static_assert(has_fields<StageReady, 4>);
static_assert(has_fields<StageFailed, 7>);
static_assert(has_fields<LinkUse, 10>);
static_assert(has_fields<StepReport, 11>);
static_assert(has_fields<CheckpointReport, 6>);
static_assert(has_fields<EvaluationReport, 7>);
static_assert(has_fields<ComparisonReport, 5>);
static_assert(has_fields<LinkComparison, 5>);
static_assert(has_fields<PredictionReport, 4>);
static_assert(has_fields<PeerLog, 1>);
static_assert(has_fields<GetBlob, 4>);
static_assert(has_fields<PutBlob, 6>);
static_assert(has_fields<BlobAnswer, 6>);
static_assert(has_fields<HaveBlobs, 3>);
static_assert(has_fields<MissingBlobs, 2>);
static_assert(has_fields<GetMicrobatch, 7>);
static_assert(has_fields<MicrobatchAnswer, 5>);
static_assert(has_fields<FilePiece, 3>);
static_assert(has_fields<PackedFile, 2>);
static_assert(has_fields<ModelTensor, 5>);
static_assert(has_fields<SubmitJob, 10>);
static_assert(has_fields<JobAccepted, 1>);
static_assert(has_fields<StageStatus, 7>);
static_assert(has_fields<JobStatus, 17>);
static_assert(has_fields<PeerStatus, 11>);
static_assert(has_fields<JobEvent, 17>);
static_assert(has_fields<ListJobs, 2>);
static_assert(has_fields<JobList, 2>);
static_assert(has_fields<GetJob, 1>);
static_assert(has_fields<GetEvents, 3>);
static_assert(has_fields<EventsEnd, 1>);
static_assert(has_fields<StopJob, 1>);
static_assert(has_fields<ResumeJob, 1>);
static_assert(has_fields<BanPeer, 2>);
static_assert(has_fields<Done, 0>);
static_assert(has_fields<ListPeers, 0>);
static_assert(has_fields<PeerList, 1>);
static_assert(has_fields<GetResult, 1>);
static_assert(has_fields<JobResult, 6>);
static_assert(has_fields<LinkHello, 7>);
static_assert(has_fields<LinkReady, 3>);
static_assert(has_fields<LinkAck, 1>);
static_assert(has_fields<ResumeStage, 2>);
static_assert(has_fields<StageResumed, 3>);
static_assert(has_fields<StandBy, 6>);
static_assert(has_fields<StandingBy, 4>);
static_assert(has_fields<RunStage, 5>);
static_assert(has_fields<RunPlan, 25>);
static_assert(has_fields<ProbeLink, 9>);
static_assert(has_fields<ProbeReport, 6>);
static_assert(has_fields<ProbeHello, 1>);
static_assert(has_fields<ProbeSay, 2>);
static_assert(has_fields<ListLinks, 0>);
static_assert(has_fields<LinkEnd, 6>);
static_assert(has_fields<LinkFigure, 7>);
static_assert(has_fields<LinkList, 3>);
static_assert(has_fields<TensorHeader, 10>);
static_assert(has_fields<PlanCandidate, 3>);
static_assert(has_fields<plan::DeviceView, 12>);
static_assert(has_fields<plan::LinkView, 3>);
static_assert(has_fields<PlanQuestion, 9>);
static_assert(has_fields<DataSource, 10>);
static_assert(has_fields<InputFeed, 3>);
static_assert(has_fields<InputBounds, 4>);
static_assert(has_fields<StepDivisor, 4>);
static_assert(has_fields<dag::CountRule, 4>);
static_assert(has_fields<dag::ParameterGroup, 3>);
static_assert(has_fields<ProgramFeed, 5>);
static_assert(has_fields<JobFeed, 8>);
static_assert(has_fields<PlanAnswer, 7>);

}  // namespace
}  // namespace weft::proto

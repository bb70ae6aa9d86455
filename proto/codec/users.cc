// What users submit and ask.
#include <set>

#include "proto/codec/wire.h"

namespace weft::proto {
namespace {

// A path that stays beneath the folder it is put into, on any system.
bool stays_beneath(std::string_view path) {
  if (path.empty() || path.find('\0') != path.npos || path.find('\\') != path.npos) return false;
  for (size_t begin = 0; begin <= path.size();) {
    const size_t end = std::min(path.find('/', begin), path.size());
    const std::string_view part = path.substr(begin, end - begin);
    if (part.empty() || part == "." || part == "..") return false;
    begin = end + 1;
  }
  return true;
}

}  // namespace

void put(const FilePiece& from, wire::FilePiece& to) {
  to.set_bytes(from.bytes);
  if (from.sha256) to.set_sha256(put_bytes(*from.sha256));
  to.set_size(from.size);
}
Status get(const wire::FilePiece& from, FilePiece& to) {
  Reader read("FilePiece");
  to.bytes = from.bytes();
  read.digest(from.sha256(), to.sha256, "sha256");
  read.size(from.size(), to.size, "size");
  read.require(to.sha256 ? to.bytes.empty() : to.size == to.bytes.size(), "size",
               "a piece is bytes of its size, or a digest without bytes");
  return read.status();
}

void put(const PackedFile& from, wire::PackedFile& to) {
  to.set_path(from.path);
  put_list(from.pieces, *to.mutable_pieces());
}
Status get(const wire::PackedFile& from, PackedFile& to) {
  Reader read("PackedFile");
  read.text(from.path(), to.path, kSymbolMax, "path");
  read.require(stays_beneath(to.path), "path", "not a relative path without \".\", \"..\" and empty parts");
  read.list(from.pieces(), to.pieces, kListMax, "pieces");
  WEFT_TRY_STATUS(read.status());
  uint64_t size = 0;
  for (const FilePiece& piece : to.pieces) size += piece.size;  // 100,000 * 2^43 fit
  read.require(size <= kBlobSizeMax, "pieces", "more than 2^43 bytes together");
  return read.status();
}

void put(const ModelTensor& from, wire::ModelTensor& to) {
  to.set_name(from.name);
  to.set_role(put_enum<wire::TensorRole>(from.role));
  to.set_reason(put_enum<wire::RoleReason>(from.reason));
  to.set_axis(from.axis + 1);
  to.set_frozen(from.frozen);
}
Status get(const wire::ModelTensor& from, ModelTensor& to) {
  Reader read("ModelTensor");
  read.text(from.name(), to.name, kSymbolMax, "name");
  read.require(!to.name.empty(), "name", "empty");
  read.enumerator(from.role(), to.role, dag::TensorRole::Statistic, "role");
  const int reason = from.reason();
  if (reason > wire::ROLE_REASON_UNSPECIFIED && reason <= put_enum<wire::RoleReason>(dag::RoleReason::Repeat))
    to.reason = static_cast<dag::RoleReason>(reason - 1);
  read.require(from.axis() >= 0 && from.axis() <= static_cast<int>(kDimsMax), "axis", "not one of 16");
  if (read.good()) to.axis = from.axis() - 1;
  to.frozen = from.frozen();
  return read.status();
}

void put(const Beginning& from, wire::Beginning& to) {
  to.set_step(from.step);
  to.set_skipped_steps(from.skipped_steps);
  put_list(from.tensors, *to.mutable_tensors());
  put_plain(from.replica_skipped_steps, *to.mutable_replica_skipped_steps());
}
Status get(const wire::Beginning& from, Beginning& to) {
  Reader read("Beginning");
  to.step = from.step();
  read.require(to.step > 0, "step", "0");
  to.skipped_steps = from.skipped_steps();
  read.require(to.skipped_steps <= to.step, "skipped_steps", "more than there were steps");
  read.list(from.tensors(), to.tensors, kListMax, "tensors");
  read.numbers(from.replica_skipped_steps(), to.replica_skipped_steps, replicas::kReplicasMax,
               "replica_skipped_steps");
  for (const uint64_t skipped : to.replica_skipped_steps)
    read.require(skipped <= to.step, "replica_skipped_steps", "more than there were steps");
  return read.status();
}

void put(const SubmitJob& from, wire::SubmitJob& to) {
  to.set_name(put_text(from.name, kNameMax));
  to.set_job(from.job);
  to.set_stages(from.stages);
  put_list(from.files, *to.mutable_files());
  put_plain(from.excluded, *to.mutable_excluded());
  to.set_compresses(from.compresses);
  to.set_arithmetic(put_enum<wire::Arithmetic>(from.arithmetic));
  to.set_skips_steps(from.skips_steps);
  to.set_peer_minor(from.peer_minor);
  put_list(from.tensors, *to.mutable_tensors());
  to.set_serves(from.serves);
  to.set_submitter(put_text(from.submitter, kNameMax));
  if (from.beginning) put(*from.beginning, *to.mutable_beginning());
  if (!from.recipes.empty()) put_recipes(from.recipes, *to.mutable_recipes());
}
Status get(const wire::SubmitJob& from, SubmitJob& to) {
  Reader read("SubmitJob");
  read.name(from.name(), to.name, "name");
  read.text(from.job(), to.job, kJobFileMax, "job");
  to.stages = from.stages();
  read.require(to.stages <= kStagesMax, "stages", "more than 1024");
  read.list(from.files(), to.files, kShortListMax, "files");
  std::set<std::string_view> paths;
  for (const PackedFile& file : to.files)
    read.require(paths.insert(file.path).second, "files", "a path is there twice");
  read.names(from.excluded(), to.excluded, kExcludedMax, "excluded");
  to.compresses = from.compresses();
  if (from.arithmetic() != wire::ARITHMETIC_UNSPECIFIED)
    read.enumerator(from.arithmetic(), to.arithmetic, dag::Arithmetic::BF16, "arithmetic");
  to.skips_steps = from.skips_steps();
  to.peer_minor = from.peer_minor();
  read.list(from.tensors(), to.tensors, kListMax, "tensors");
  std::set<std::string_view> tensors;
  for (const ModelTensor& tensor : to.tensors)
    read.require(tensors.insert(tensor.name).second, "tensors", "a name is there twice");
  read.name(from.serves(), to.serves, "serves");
  read.name(from.submitter(), to.submitter, "submitter");
  if (from.has_beginning()) read.part(from.beginning(), to.beginning.emplace(), "beginning");
  get_recipes(from.recipes(), to.recipes, read);
  return read.status();
}

void put(const JobAccepted& from, wire::JobAccepted& to) { to.set_job(from.job); }
Status get(const wire::JobAccepted& from, JobAccepted& to) {
  to.job = from.job();
  return {};
}

// ---- states

template <typename Wire>
void put_metrics(const std::map<std::string, double>& from, Wire& to) {
  for (const auto& [name, value] : from) {
    to.add_metrics()->set_name(name);
    to.mutable_metrics()->rbegin()->set_value(value);
  }
}
template <typename Wire>
void get_metrics(const Wire& from, std::map<std::string, double>& to, Reader& read) {
  read.require(static_cast<size_t>(from.metrics_size()) <= kStagesMax, "metrics", "more than 1024");
  for (int i = 0; i < from.metrics_size() && read.good(); ++i) {
    std::string name;
    read.name(from.metrics(i).name(), name, "metrics.name");
    read.require(to.emplace(std::move(name), from.metrics(i).value()).second, "metrics",
                 "a name is there twice");
  }
}

void put(const StageStatus& from, wire::StageStatus& to) {
  put_seat(from.seat, to);
  to.set_peer(put_bytes(from.peer.digest));
  to.set_peer_name(from.peer_name);
  to.set_region(from.region);
  to.set_busy(from.busy);
  put_list(from.links, *to.mutable_links());
  to.set_step(from.step);
}
Status get(const wire::StageStatus& from, StageStatus& to) {
  Reader read("StageStatus");
  read.seat(from.stage(), from.replica(), to.seat, "stage");
  read.digest(from.peer(), to.peer.digest, "peer");
  read.name(from.peer_name(), to.peer_name, "peer_name");
  read.name(from.region(), to.region, "region");
  to.busy = from.busy();
  read.list(from.links(), to.links, kStagesMax, "links");
  to.step = from.step();
  return read.status();
}

void put(const LinkComparison& from, wire::LinkComparison& to) {
  to.set_step(from.step);
  to.set_loss_dense(from.loss_dense);
  to.set_loss(from.loss);
  to.set_gradient_error(from.gradient_error);
  to.set_gradient_cosine(from.gradient_cosine);
}
Status get(const wire::LinkComparison& from, LinkComparison& to) {
  to.step = from.step();
  to.loss_dense = from.loss_dense();
  to.loss = from.loss();
  to.gradient_error = from.gradient_error();
  to.gradient_cosine = from.gradient_cosine();
  return {};
}

void put(const JobStatus& from, wire::JobStatus& to) {
  to.set_job(from.job);
  to.set_name(put_text(from.name, kNameMax));
  to.set_state(put_enum<wire::JobState>(from.state));
  to.set_reason(put_text(from.reason));
  to.set_plan_version(from.plan_version);
  to.set_step(from.step);
  to.set_steps(from.steps);
  to.set_loss(from.loss);
  to.set_samples_per_second(from.samples_per_second);
  to.set_seconds_left(from.seconds_left);
  to.set_checkpoint_step(from.checkpoint_step);
  to.set_recovery_step(from.recovery_step);
  to.set_recoveries(from.recoveries);
  to.set_equal_bits(from.equal_bits);
  for (const std::string& line : from.plan) to.add_plan(put_text(line));
  put_list(from.stages, *to.mutable_stages());
  put(from.comparison, *to.mutable_comparison());
  to.set_submitter(put_text(from.submitter, kNameMax));
  to.set_submitted_unix_ms(from.submitted_unix_ms);
  to.set_ended_unix_ms(from.ended_unix_ms);
  to.set_evaluated_step(from.evaluated_step);
  put_metrics(from.metrics, to);
  to.set_saving_step(from.saving.step);
  to.set_saving_bytes(static_cast<uint64_t>(from.saving.bytes.value));
  to.set_saved_bytes(static_cast<uint64_t>(from.saving.saved.value));
  put_plain(from.replicas.steps, *to.mutable_replica_steps());
  to.set_agreed_step(from.replicas.agreed_step);
  to.set_seconds_since_agreement(from.replicas.seconds_since_agreement);
}
Status get(const wire::JobStatus& from, JobStatus& to) {
  WEFT_TRY_STATUS(get(from.comparison(), to.comparison));
  Reader read("JobStatus");
  to.job = from.job();
  read.name(from.name(), to.name, "name");
  read.enumerator(from.state(), to.state, JobState::Failed, "state");
  read.message(from.reason(), to.reason, "reason");
  to.plan_version = from.plan_version();
  to.step = from.step();
  to.steps = from.steps();
  to.loss = from.loss();
  to.samples_per_second = from.samples_per_second();
  to.seconds_left = from.seconds_left();
  to.checkpoint_step = from.checkpoint_step();
  to.recovery_step = from.recovery_step();
  to.recoveries = from.recoveries();
  to.equal_bits = from.equal_bits();
  read.messages(from.plan(), to.plan, kShortListMax, "plan");
  read.list(from.stages(), to.stages, kStagesMax, "stages");
  read.name(from.submitter(), to.submitter, "submitter");
  to.submitted_unix_ms = from.submitted_unix_ms();
  to.ended_unix_ms = from.ended_unix_ms();
  to.evaluated_step = from.evaluated_step();
  get_metrics(from, to.metrics, read);
  to.saving.step = from.saving_step();
  read.bytes(from.saving_bytes(), to.saving.bytes, "saving_bytes");
  read.bytes(from.saved_bytes(), to.saving.saved, "saved_bytes");
  read.require(to.saving.saved <= to.saving.bytes, "saved_bytes", "more than there are");
  read.numbers(from.replica_steps(), to.replicas.steps, kReplicasMax, "replica_steps");
  to.replicas.agreed_step = from.agreed_step();
  to.replicas.seconds_since_agreement = from.seconds_since_agreement();
  return read.status();
}

void put(const PeerStatus& from, wire::PeerStatus& to) {
  to.set_peer(put_bytes(from.peer.digest));
  to.set_name(from.name);
  to.set_region(from.region);
  to.set_device(from.device);
  to.set_software(from.software);
  to.set_state(from.state);
  put(from.rates, *to.mutable_rates());
  to.set_memory(static_cast<uint64_t>(from.memory.value));
  to.set_reachable(from.reachable);
  to.set_seconds_since_heard(from.seconds_since_heard);
  to.set_owner(from.owner);
  to.set_reach(put_enum<wire::Reach>(from.reach));
  to.set_reason(put_text(from.reason, kNameMax));
  put_plain(from.jobs, *to.mutable_jobs());
}
Status get(const wire::PeerStatus& from, PeerStatus& to) {
  Reader read("PeerStatus");
  read.digest(from.peer(), to.peer.digest, "peer");
  read.name(from.name(), to.name, "name");
  read.name(from.region(), to.region, "region");
  read.name(from.device(), to.device, "device");
  read.name(from.software(), to.software, "software");
  read.name(from.state(), to.state, "state");
  read.part(from.rates(), to.rates, "rates");
  read.bytes(from.memory(), to.memory, "memory");
  to.reachable = from.reachable();
  to.seconds_since_heard = from.seconds_since_heard();
  read.name(from.owner(), to.owner, "owner");
  to.reach = to.reachable ? Reach::Untried : Reach::Relay;  // of a broker before minor version 13
  if (from.reach() != wire::REACH_UNSPECIFIED)
    read.enumerator(from.reach(), to.reach, Reach::Closed, "reach");
  read.name(from.reason(), to.reason, "reason");
  read.require(static_cast<uint32_t>(from.jobs_size()) <= kStagesHeldMax, "jobs", "more than 16");
  if (read.good()) to.jobs.assign(from.jobs().begin(), from.jobs().end());
  return read.status();
}

void put(const JobEvent& from, wire::JobEvent& to) {
  to.set_job(from.job);
  to.set_sequence(from.sequence);
  to.set_unix_ms(from.unix_ms);
  to.set_kind(put_enum<wire::JobEventKind>(from.kind));
  to.set_state(put_enum<wire::JobState>(from.state));
  to.set_step(from.step);
  to.set_loss(from.loss);
  to.set_learning_rate(from.learning_rate);
  to.set_seconds(from.seconds);
  to.set_samples_per_second(from.samples_per_second);
  to.set_gradient_norm(from.gradient_norm);
  to.set_samples(from.samples);
  put_metrics(from.metrics, to);
  to.set_text(put_text(from.text));
  for (const std::string& peer : from.peers) to.add_peers(put_text(peer));
  to.set_diverged(from.diverged);
  to.set_skipped(from.skipped);
  for (const plan::Seat& seat : from.seats) {
    to.add_seat_stages(seat.stage);
    to.add_seat_replicas(seat.replica);
  }
  if (from.local_steps) put(*from.local_steps, *to.mutable_local_steps());
  if (!from.inherited.is_whole()) put(from.inherited, *to.mutable_inherited());
}
Status get(const wire::JobEvent& from, JobEvent& to) {
  Reader read("JobEvent");
  to.job = from.job();
  to.sequence = from.sequence();
  to.unix_ms = from.unix_ms();
  read.enumerator(from.kind(), to.kind, JobEventKind::Result, "kind");
  read.enumerator(from.state(), to.state, JobState::Failed, "state");
  to.step = from.step();
  to.loss = from.loss();
  to.learning_rate = from.learning_rate();
  to.seconds = from.seconds();
  to.samples_per_second = from.samples_per_second();
  to.gradient_norm = from.gradient_norm();
  to.samples = from.samples();
  get_metrics(from, to.metrics, read);
  read.message(from.text(), to.text, "text");
  read.names(from.peers(), to.peers, kStagesMax, "peers");
  to.diverged = from.diverged();
  to.skipped = from.skipped();
  read.require(from.seat_stages_size() == from.seat_replicas_size() &&
                   (from.seat_stages_size() == 0 || from.seat_stages_size() == from.peers_size()),
               "seat_stages", "not one for each peer");
  for (int i = 0; i < from.seat_stages_size() && read.good(); ++i)
    read.seat(from.seat_stages(i), from.seat_replicas(i), to.seats.emplace_back(), "seat_stages");
  if (from.has_local_steps()) read.part(from.local_steps(), to.local_steps.emplace(), "local_steps");
  if (from.has_inherited()) read.part(from.inherited(), to.inherited, "inherited");
  return read.status();
}

// ---- requests and answers

void put(const ListJobs& from, wire::ListJobs& to) {
  to.set_before(from.before);
  to.set_count(from.count);
}
Status get(const wire::ListJobs& from, ListJobs& to) {
  to = {from.before(), from.count()};
  return {};
}

void put(const JobList& from, wire::JobList& to) {
  put_list(from.jobs, *to.mutable_jobs());
  to.set_more(from.more);
}
Status get(const wire::JobList& from, JobList& to) {
  Reader read("JobList");
  read.list(from.jobs(), to.jobs, kListMax, "jobs");
  to.more = from.more();
  return read.status();
}

void put(const GetJob& from, wire::GetJob& to) { to.set_job(from.job); }
Status get(const wire::GetJob& from, GetJob& to) {
  to.job = from.job();
  return {};
}

void put(const GetEvents& from, wire::GetEvents& to) {
  to.set_job(from.job);
  to.set_from_sequence(from.from_sequence);
  to.set_follow(from.follow);
}
Status get(const wire::GetEvents& from, GetEvents& to) {
  to = {from.job(), from.from_sequence(), from.follow()};
  return {};
}

void put(const EventsEnd& from, wire::EventsEnd& to) { to.set_job(from.job); }
Status get(const wire::EventsEnd& from, EventsEnd& to) {
  to.job = from.job();
  return {};
}

void put(const StopJob& from, wire::StopJob& to) { to.set_job(from.job); }
Status get(const wire::StopJob& from, StopJob& to) {
  to.job = from.job();
  return {};
}

void put(const ResumeJob& from, wire::ResumeJob& to) { to.set_job(from.job); }
Status get(const wire::ResumeJob& from, ResumeJob& to) {
  to.job = from.job();
  return {};
}

void put(const RemoveJob& from, wire::RemoveJob& to) { to.set_job(from.job); }
Status get(const wire::RemoveJob& from, RemoveJob& to) {
  to.job = from.job();
  return {};
}

void put(const BanPeer& from, wire::BanPeer& to) {
  to.set_peer(put_text(from.peer));
  to.set_lift(from.lift);
}
Status get(const wire::BanPeer& from, BanPeer& to) {
  Reader read("BanPeer");
  read.name(from.peer(), to.peer, "peer");
  to.lift = from.lift();
  return read.status();
}

void put(const Done&, wire::Done&) {}
Status get(const wire::Done&, Done&) { return {}; }

void put(const ListPeers&, wire::ListPeers&) {}
Status get(const wire::ListPeers&, ListPeers&) { return {}; }

void put(const PeerList& from, wire::PeerList& to) {
  put_list(from.peers, *to.mutable_peers());
  to.set_blob_bytes(static_cast<uint64_t>(from.blob_bytes.value));
  to.set_disk_free(static_cast<uint64_t>(from.disk_free.value));
  to.set_disk_size(static_cast<uint64_t>(from.disk_size.value));
}
Status get(const wire::PeerList& from, PeerList& to) {
  Reader read("PeerList");
  read.list(from.peers(), to.peers, kListMax, "peers");
  read.bytes(from.blob_bytes(), to.blob_bytes, "blob_bytes");
  read.bytes(from.disk_free(), to.disk_free, "disk_free");
  read.bytes(from.disk_size(), to.disk_size, "disk_size");
  return read.status();
}

void put(const GetResult& from, wire::GetResult& to) { to.set_job(from.job); }
Status get(const wire::GetResult& from, GetResult& to) {
  to.job = from.job();
  return {};
}

void put(const JobResult& from, wire::JobResult& to) {
  to.set_job(from.job);
  to.set_step(from.step);
  put_list(from.tensors, *to.mutable_tensors());
  put_list(from.model, *to.mutable_model());
  put_list(from.predictions, *to.mutable_predictions());
  to.set_sample_count(from.sample_count);
}
Status get(const wire::JobResult& from, JobResult& to) {
  Reader read("JobResult");
  to.job = from.job();
  to.step = from.step();
  read.list(from.tensors(), to.tensors, kListMax, "tensors");
  read.list(from.model(), to.model, kShortListMax, "model");
  read.list(from.predictions(), to.predictions, kListMax, "predictions");
  to.sample_count = from.sample_count();
  return read.status();
}

}  // namespace weft::proto

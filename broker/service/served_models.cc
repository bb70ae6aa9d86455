#include "broker/service/served_models.h"

namespace weft::broker {

namespace {

std::string why_not(const AnsweringJob& job) {
  if (!job.fault.empty()) return job.fault;
  return job.job->unavailable.empty() ? "it is being made ready" : job.job->unavailable;
}

web::ApiError opened_soon(const std::string& what) {
  web::ApiError error = web::to_api_error({ErrorCode::Unavailable, what + " is opened again soon"});
  error.retry_after = 1;
  return error;
}

}  // namespace

void ServedModels::retire(AnsweringJob job) {
  if (job.text) gone_.push_back({now_(), std::move(job.text)});
}

void ServedModels::put(const AnsweringJob& job) {
  const MutexLock lock(mutex_);
  AnsweringJob& place = jobs_[job.job->job];
  if (place.text != job.text) retire(place);
  place = job;
}

void ServedModels::remove(proto::JobNumber job) {
  const MutexLock lock(mutex_);
  auto node = jobs_.extract(job);
  if (node) retire(std::move(node.mapped()));
}

std::vector<AnsweringJob> ServedModels::all() const {
  const MutexLock lock(mutex_);
  std::vector<AnsweringJob> all;
  all.reserve(jobs_.size());
  for (const auto& [number, job] : jobs_) all.push_back(job);
  return all;
}

void ServedModels::forget() {
  std::vector<Gone> old;  // they end without the lock: their threads are waited for
  const MutexLock lock(mutex_);
  for (auto gone = gone_.begin(); gone != gone_.end();) {
    if (now_() - gone->since <= serve::TextService::kKept) {
      ++gone;
      continue;
    }
    old.push_back(std::move(*gone));
    gone = gone_.erase(gone);
  }
}

bool ServedModels::answers(const AnsweringJob& job) const {
  if (!job.work) return false;
  const MutexLock lock(job.work->mutex);
  return job.work->requests.answers(now_());
}

std::optional<AnsweringJob> ServedModels::find(const std::string& name) const {
  std::optional<AnsweringJob> found;
  for (AnsweringJob& job : all()) {
    if (job.job->model.name != name) continue;
    if (answers(job)) return std::move(job);
    found = std::move(job);
  }
  return found;
}

std::vector<web::ModelInfo> ServedModels::models() const {
  std::vector<web::ModelInfo> models;
  for (const AnsweringJob& job : all())
    if (answers(job)) models.push_back({job.job->model.name, job.job->created});
  return models;
}

std::optional<web::ApiError> ServedModels::why_absent(const std::string& model) const {
  const auto job = find(model);
  if (!job) return {};
  web::ApiError error =
      web::to_api_error({ErrorCode::Unavailable, "'" + model + "' cannot answer now: " + why_not(*job)});
  error.param = "model";
  error.code = "model_not_placed";
  error.retry_after = kRetryAfter;
  return error;
}

std::shared_ptr<web::OpenRequest> ServedModels::start(web::GenerateRequest request,
                                                      std::shared_ptr<web::Sink> sink) {
  if (request.once && kept_.want_once(serve::once_name(*request.once))) {
    sink->on_error(opened_soon("what was asked under this Idempotency-Key"));
    return nullptr;
  }
  const auto job = find(request.model);
  if (job && job->text) return job->text->start(std::move(request), std::move(sink));
  sink->on_error(why_absent(request.model).value_or(web::unknown_model(request.model, {})));
  return nullptr;
}

std::shared_ptr<web::OpenRequest> ServedModels::find_kept(const std::string& id,
                                                          const std::shared_ptr<web::Sink>& sink) const {
  std::vector<std::shared_ptr<serve::TextService>> texts;
  {
    const MutexLock lock(mutex_);
    for (const auto& [number, job] : jobs_)
      if (job.text) texts.push_back(job.text);
    for (const Gone& gone : gone_) texts.push_back(gone.text);
  }
  for (const auto& text : texts)
    if (auto found = text->resume_kept(id, sink)) return found;
  return nullptr;
}

// One of a broker before this one may be opened between two looks.
std::shared_ptr<web::OpenRequest> ServedModels::resume(const std::string& id,
                                                       std::shared_ptr<web::Sink> sink) {
  if (auto found = find_kept(id, sink)) return found;
  const bool is_to_come = kept_.want(id);
  if (is_to_come) {
    sink->on_error(opened_soon("the stream '" + id + "'"));
    return nullptr;
  }
  if (auto found = find_kept(id, sink)) return found;
  sink->on_error(serve::no_such_stream(id));
  return nullptr;
}

// Anybody may ask: no names.
web::Health ServedModels::health() const {
  size_t served = 0, well = 0;
  std::string unwell;
  for (const AnsweringJob& job : all()) {
    ++served;
    if (!answers(job)) continue;
    const web::Health health = job.text->health();
    well += health.is_well ? 1 : 0;
    unwell = health.is_well ? unwell : "; " + health.what;
  }
  if (served == 0) return {true, "no model is served"};
  return {well > 0, std::to_string(well) + " of " + std::to_string(served) + " models answer" + unwell};
}

Metrics ServedModels::metrics() const {
  Metrics metrics = kept_.metrics();
  for (const AnsweringJob& job : all())
    if (job.text) metrics.merge(job.text->metrics());
  return metrics;
}

}  // namespace weft::broker

#include "train/initial_places.h"

#include <algorithm>
#include <optional>
#include <set>

#include "base/glob.h"
#include "base/printable.h"
#include "base/typing_distance.h"
#include "configs/rename.h"
#include "dag/onnx/roles.h"
#include "data/kinds.h"
#include "train/loss_warnings.h"

namespace weft::train {
namespace {

using configs::InitTerms;
using configs::Job;
using Names = std::vector<std::string>;

constexpr size_t kShownMax = 10;        // names of each kind
constexpr size_t kLookedAtMax = 5'000;  // for a near name
constexpr size_t kWordMax = 128;

std::string named(std::string_view name) { return "'" + printable(name.substr(0, kWordMax)) + "'"; }

std::string list(const Names& names) {
  std::string text;
  for (size_t i = 0; i < std::min(names.size(), kShownMax); ++i) text += (i == 0 ? "" : ", ") + names[i];
  return text +
         (names.size() > kShownMax ? " and " + std::to_string(names.size() - kShownMax) + " more" : "");
}

std::string count(size_t number, const char* one, const char* many) {
  return std::to_string(number) + " " + (number == 1 ? one : many);
}

bool is_matrix(const dag::TensorSpec& spec) { return spec.rank() == 2; }
dag::Shape turned(const dag::Shape& shape) { return {shape[1], shape[0]}; }

// Patterns over names, each of which has to name something.
class Patterns {
 public:
  Patterns(const Names& patterns, const char* key)
      : patterns_(patterns), key_(key), has_named_(patterns.size(), false) {}

  bool match(std::string_view name) {
    bool found = false;
    for (size_t i = 0; i < patterns_.size(); ++i)
      if (matches_glob(patterns_[i], name)) found = has_named_[i] = true;
    return found;
  }
  Status check(const Job& job, const char* what) const {
    for (size_t i = 0; i < patterns_.size(); ++i)
      if (!has_named_[i])
        return fail(job.error(ErrorCode::NotFound, "init." + key_ + "[" + std::to_string(i) + "]",
                              named(patterns_[i]) + " names no " + what));
    return {};
  }

 private:
  const Names& patterns_;
  std::string key_;
  std::vector<bool> has_named_;
};

// The rules of `rename`, each of which has to change something.
class Renames {
 public:
  static Result<Renames> compile(const InitTerms& init) {
    Renames renames;
    for (const auto& [pattern, replacement] : init.rename) {
      WEFT_TRY(configs::Rename rule, configs::Rename::compile(pattern, replacement));
      renames.rules_.push_back({std::move(rule), pattern, false});
    }
    return renames;
  }
  std::string apply(std::string name) {
    for (Rule& rule : rules_) {
      std::string renamed = rule.rename.apply(name);
      rule.has_changed |= renamed != name;
      name = std::move(renamed);
    }
    return name;
  }
  Status check(const Job& job) const {
    for (const Rule& rule : rules_)
      if (!rule.has_changed)
        return fail(job.error(ErrorCode::NotFound, "init.rename",
                              "the pattern " + named(rule.pattern) + " is found in no name of a tensor"));
    return {};
  }

 private:
  struct Rule {
    configs::Rename rename;
    std::string pattern;
    bool has_changed;
  };
  std::vector<Rule> rules_;
};

// What does not fit, by kind.
struct Misfits {
  Names homeless;  // tensors without a place, as renamed
  Names missing;   // weights without a tensor
  Names wrong;     // in words

  bool are_none() const { return homeless.empty() && missing.empty() && wrong.empty(); }
};

// ---- what to say of them

// The end of the name behind each of its dots, with what stands in front.
void visit_tails(const std::string& name, const auto& visit) {
  for (size_t dot = name.find('.'); dot != std::string::npos; dot = name.find('.', dot + 1))
    visit(name.substr(0, dot + 1), name.substr(dot + 1));
}

// What most of `names` have in front of one of `others`; empty: nothing.
std::string common_front(const Names& names, const Names& others) {
  const std::set<std::string> known(others.begin(), others.end());
  std::map<std::string, size_t> fronts;
  for (size_t i = 0; i < std::min(names.size(), kLookedAtMax); ++i)
    visit_tails(names[i], [&](const std::string& front, const std::string& tail) {
      if (known.contains(tail)) ++fronts[front];
    });
  const auto best = std::max_element(fronts.begin(), fronts.end(),
                                     [](const auto& a, const auto& b) { return a.second < b.second; });
  return best == fronts.end() ? "" : best->first;
}

// For a job file, in double quotes.
std::string as_pattern(const std::string& front) {
  std::string text = "\"^";
  for (const char c : front) text += c == '.' ? "\\\\." : std::string(1, c);
  return printable(text + "\"");
}

std::string near_name(const std::string& name, const Names& others) {
  std::optional<std::pair<size_t, const std::string*>> best;
  for (size_t i = 0; i < std::min(others.size(), kLookedAtMax); ++i) {
    if (others[i].size() > kWordMax || name.size() > kWordMax) continue;
    const size_t distance = typing_distance(name, others[i]);
    if (distance <= 1 + name.size() / 3 && (!best || distance < best->first)) best = {distance, &others[i]};
  }
  return best ? " (near: " + named(*best->second) + ")" : "";
}

std::string rename_advice(const Misfits& misfits, bool takes_some) {
  if (const std::string front = common_front(misfits.homeless, misfits.missing); !front.empty())
    return "rename: {" + as_pattern(front) + ": \"\"}";
  const std::string front = takes_some ? "" : common_front(misfits.missing, misfits.homeless);
  return front.empty() ? "" : "rename: {\"^\": \"" + printable(front) + "\"}";
}

std::string describe(const Misfits& misfits, bool takes_some) {
  Names homeless, missing;
  const std::string advice = rename_advice(misfits, takes_some);
  for (const std::string& name : misfits.homeless) homeless.push_back(named(name));
  for (size_t i = 0; i < misfits.missing.size(); ++i)
    missing.push_back(named(misfits.missing[i]) + (advice.empty() && i < kShownMax
                                                       ? near_name(misfits.missing[i], misfits.homeless)
                                                       : ""));
  std::string text;
  if (!homeless.empty())
    text += "\n  " + count(homeless.size(), "tensor has", "tensors have") +
            " no place in the model: " + list(homeless);
  if (!missing.empty())
    text += "\n  " + count(missing.size(), "weight", "weights") + " of the model " +
            (missing.size() == 1 ? "has" : "have") + " no tensor: " + list(missing);
  for (size_t i = 0; i < std::min(misfits.wrong.size(), kShownMax); ++i) text += "\n  " + misfits.wrong[i];
  if (misfits.wrong.size() > kShownMax)
    text += "\n  and " + std::to_string(misfits.wrong.size() - kShownMax) + " more do not fit";
  if (!advice.empty()) text += "\n  this would help: " + advice;
  if (!homeless.empty() || !missing.empty())
    text +=
        "\n  `rename` changes names, `ignore` leaves tensors out, `keep` names weights that stay as they "
        "are, and `partial: true` takes what there is";
  return text;
}

// ---- which goes where

class Placing {
 public:
  Placing(const Job& job, const onnx::OnnxModel& model, InitialPlaces& found, Renames renames)
      : job_(job),
        init_(*job.init),
        model_(model),
        found_(found),
        renames_(std::move(renames)),
        transpose_(init_.transpose, "transpose"),
        ignore_(init_.ignore, "ignore"),
        keep_(init_.keep, "keep") {}

  Status run() {
    for (const auto& [name, tensor] : model_.weights())
      if (keep_.match(name)) kept_.insert(name);
    for (const auto& [name, place] : found_.files.tensors()) {
      if (ignore_.match(name))
        ++found_.ignored;
      else
        place_tensor(name, place.spec);
    }
    WEFT_TRY_STATUS(renames_.check(job_));
    WEFT_TRY_STATUS(ignore_.check(job_, "tensor of the file"));
    WEFT_TRY_STATUS(keep_.check(job_, "initializer of the model"));
    WEFT_TRY_STATUS(transpose_.check(job_, "matrix that comes from the file"));
    WEFT_TRY_STATUS(find_missing());
    if (init_.partial) {
      found_.left = misfits_.homeless.size();
      misfits_.homeless.clear();
      misfits_.missing.clear();
    }
    const std::string file = init_.file.string();
    if (!misfits_.are_none())
      return fail(job_.error(
          ErrorCode::InvalidArgument, "init",
          "`init`: " + file + " does not fit the model:" + describe(misfits_, !found_.sources.empty())));
    if (found_.sources.empty())
      return fail(
          job_.error(ErrorCode::InvalidArgument, "init", "`init`: " + file + " has no tensor for the model"));
    return {};
  }

 private:
  void place_tensor(const std::string& name, const dag::TensorSpec& spec) {
    const std::string target = renames_.apply(name);
    if (kept_.contains(target)) return;
    const auto weight = model_.weights().find(target);
    if (weight == model_.weights().end()) return misfits_.homeless.push_back(target);
    const dag::TensorSpec& wanted = weight->second.spec();
    const bool is_asked = is_matrix(wanted) && transpose_.match(target);
    const bool fits = spec.shape == wanted.shape;
    const bool fits_turned = is_matrix(wanted) && is_matrix(spec) && turned(spec.shape) == wanted.shape;
    const bool converts = spec.dtype == wanted.dtype || (is_float(spec.dtype) && is_float(wanted.dtype));
    if (!converts || (is_asked ? !fits_turned : !fits && !fits_turned))
      return misfits_.wrong.push_back(named(target) + " is " + to_string(spec) + " in the file and " +
                                      to_string(wanted) + " in the model" +
                                      (is_asked && fits ? ": `transpose` names it" : ""));
    const bool is_transposed = is_asked || !fits;
    const auto [at, is_new] = found_.sources.emplace(
        target, InitialPlaces::Source{.tensor = name, .spec = wanted, .is_transposed = is_transposed});
    if (!is_new)
      return misfits_.wrong.push_back(named(at->second.tensor) + " and " + named(name) +
                                      " would both become " + named(target));
    if (is_transposed && !is_asked) found_.transposed_unasked.push_back(target);
    if (fits && fits_turned && !is_transposed && wanted.shape[0] > 1) found_.square.push_back(target);
  }

  // What is learnt needs a value: constants of the graph are in no file of weights.
  Status find_missing() {
    const onnx::RoleOptions options{.train = {}, .freeze = {}, .read = values_read(job_.losses)};
    auto roles = onnx::judge_roles(model_, options, onnx::look_at(model_));
    if (!roles) return fail(job_.error(roles.error().code, "model", roles.error().message));
    for (const onnx::TensorRow& row : *roles) {
      if (row.role == onnx::TensorRole::Constant || found_.sources.contains(row.name)) continue;
      const bool is_kept = kept_.contains(row.name);
      if (is_kept || init_.partial) ++found_.kept;
      if (!is_kept && !is_wrong(row.name)) misfits_.missing.push_back(row.name);
    }
    return {};
  }
  // It is told already.
  bool is_wrong(const std::string& name) const {
    const std::string begin = named(name) + " is ";
    return std::any_of(misfits_.wrong.begin(), misfits_.wrong.end(),
                       [&](const std::string& text) { return text.starts_with(begin); });
  }

  const Job& job_;
  const InitTerms& init_;
  const onnx::OnnxModel& model_;
  InitialPlaces& found_;
  Renames renames_;
  Patterns transpose_, ignore_, keep_;
  std::set<std::string, std::less<>> kept_;
  Misfits misfits_;
};

// Of a file of another kind: what it is, and how to make one of it.
Error file_error(const Job& job, const Error& error) {
  const std::string file = job.init->file.string();
  const data::FileKind kind = data::kind_of(job.init->file);
  if (kind == data::FileKind::Torch || kind == data::FileKind::Pickle)
    return job.error(ErrorCode::InvalidArgument, "init",
                     "`init`: " + file + ": is " + std::string(data::name_of(kind)) +
                         ", not safetensors; in Python: safetensors.torch.save_file(torch.load('" + file +
                         "'), 'w.safetensors')");
  if (kind == data::FileKind::Onnx)
    return job.error(ErrorCode::InvalidArgument, "init",
                     "`init`: " + file + ": is an ONNX model, not safetensors; name it as `model`");
  return job.error(error.code, "init", "`init`: " + error.message);
}

}  // namespace

Result<InitialPlaces> find_initial_places(const Job& job, const onnx::OnnxModel& model) {
  auto files = data::TensorFiles::open(job.init->file);
  if (!files) return fail(file_error(job, files.error()));
  InitialPlaces found{.files = std::move(*files), .path = job.init->file};
  auto renames = Renames::compile(*job.init);
  if (!renames) return fail(job.error(renames.error().code, "init.rename", renames.error().message));
  WEFT_TRY_STATUS(Placing(job, model, found, std::move(*renames)).run());
  return found;
}

}  // namespace weft::train

"""What PyTorch has, exported and written: what is lost is said, and the data stay whole."""

import os
import random
import unittest
import warnings

import numpy as np
import torch
import torch.nn.functional as F
from support import Case, weft
from torch import nn
from weft import dataset, prepare, terms
from weft.export import export_model
from weft.weights import load_state, named_state, read_arrays, read_initializers


class Norms(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.norm, self.b = nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 3)

    def forward(self, x):
        return self.b(F.relu(self.norm(self.a(x))))


class Exports(Case):
    def setUp(self):
        super().setUp()
        torch.manual_seed(3)
        warnings.simplefilter("ignore", weft.ExportWarning)

    def export(self, model, example=None, **options):
        self.path = self.file("model.onnx")
        return export_model(model, torch.randn(2, 4) if example is None else example, self.path, **options)

    def assert_warns(self, model, *texts, example=None):
        exported = self.export(model, example)
        self.assertEqual(len(exported.warnings), len(texts), exported.warnings)
        for warning, text in zip(exported.warnings, texts):
            self.assertIn(text, warning)
        return exported

    def test_the_file_has_what_the_module_has_and_the_module_stays(self):
        model = Norms()
        model.norm.running_mean.uniform_()
        before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        drawn = torch.random.get_rng_state()
        exported = self.export(model, torch.ones(2, 4))
        self.assertEqual((exported.inputs, exported.outputs, exported.warnings), (["x"], ["output"], []))
        arrays = read_arrays(self.path)
        for name, tensor in before.items():
            self.assertTrue(torch.equal(model.state_dict()[name], tensor), name)
            if not name.endswith("num_batches_tracked"):
                np.testing.assert_array_equal(arrays[name], tensor.numpy())
        self.assertTrue(torch.equal(torch.random.get_rng_state(), drawn))
        self.assertNotIn("forward", model.__dict__)
        self.assertTrue(all(p.grad is None for p in model.parameters()))

    def test_inputs_and_outputs_by_name(self):
        class Two(nn.Module):
            def forward(self, image, mask=None, *, scale):
                return {"low": image * scale, "high": (image + mask, [mask])}
        exported = self.export(Two(), {"image": torch.ones(3, 4), "scale": torch.ones(3, 4), "mask": torch.ones(3, 4)})
        self.assertEqual(exported.inputs, ["image", "scale", "mask"])
        self.assertEqual(exported.outputs, ["low", "high0", "high1"])
        self.assertEqual(self.export(Two(), {"image": torch.ones(3, 4), "scale": torch.ones(3, 4), "mask": torch.ones(3, 4)},
                                     outputs=["a", "b", "c"]).outputs, ["a", "b", "c"])
        with self.raises(weft.InvalidArgument, "forward returns 1 tensors, and outputs names 2"):
            self.export(Norms(), outputs=["a", "b"])
        with self.raises(weft.InvalidArgument, "'x' is the name of an input"):
            self.export(Norms(), outputs=["x"])

    def test_a_batch_of_one_leaves_the_number_of_samples_open(self):
        self.export(Norms(), torch.randn(1, 4))
        seen = prepare.inspect_model(self.path)
        self.assertEqual(seen.inputs[0]["dims"], ["batch", "4"])

    def test_more_axes_are_left_open(self):
        model = nn.Linear(4, 2)
        self.export(model, torch.randn(2, 5, 4), dynamic={"input": {1: "length"}})
        self.assertEqual(prepare.inspect_model(self.path).inputs[0]["dims"], ["batch", "length", "4"])

    def test_what_is_not_a_model_or_an_example(self):
        with self.raises(weft.InvalidArgument, "is a int"):
            self.export(3)
        with self.raises(weft.InvalidArgument, "one number"):
            self.export(Norms(), torch.tensor(1.0))
        with self.raises(weft.InvalidArgument, "different numbers of samples"):
            self.export(nn.Bilinear(4, 4, 2), (torch.ones(2, 4), torch.ones(3, 4)))
        with self.raises(weft.InvalidArgument, "does not take the example"):
            self.export(Norms(), torch.ones(2, 5))

    def test_a_module_in_a_wrapper(self):
        self.export(nn.DataParallel(Norms()))
        self.assertIn("a.weight", read_arrays(self.path))

    def test_a_warning_points_to_the_call(self):
        warnings.simplefilter("always", weft.ExportWarning)
        with self.assertWarnsRegex(weft.ExportWarning, "eval mode") as caught:
            with weft.local(Norms().eval(), [(torch.ones(4), 0)] * 4, loss="cross_entropy", batch_size=2, steps=1) as run:
                self.assertIn("eval mode", run.warnings[0])
                run.wait()
        self.assertEqual(os.path.basename(caught.filename), "test_export.py")

    # ---- what is lost

    def test_eval_mode(self):
        model = Norms().eval()
        self.assert_warns(model, "the model is in eval mode")
        self.assertFalse(model.training or model.norm.training)

    def test_a_part_in_eval_mode_stays_so(self):
        model = Norms()
        model.norm.eval()
        self.assert_warns(model)
        ops = prepare.inspect_model(self.path)
        self.assertIn("statistics", " ".join(ops.warnings + ops.notes))

    def test_hooks(self):
        model = Norms()
        model.a.register_forward_hook(lambda *_: None)
        model.b.register_full_backward_hook(lambda *_: None)
        model.a.weight.register_hook(lambda g: g * 2)
        self.assert_warns(model, "'a' has forward hooks", "'b', 'a.weight' has backward hooks")

    def test_weight_norm_is_exported(self):
        self.assert_warns(nn.Sequential(nn.utils.weight_norm(nn.Linear(4, 4))))
        self.assertLessEqual({"0.weight_g", "0.weight_v"}, set(read_arrays(self.path)))

    def test_what_cannot_be_exported_says_what_it_may_be(self):
        with self.raises(weft.ExportError, "It may be that 'weight_u', 'weight_v' changes in each run"):
            self.export(nn.utils.spectral_norm(nn.Linear(4, 4)))

    def test_stochastic_depth_in_eval_mode_is_left_out(self):
        class Drops(nn.Module):
            def forward(self, x):
                return x * torch.empty(len(x), 1).bernoulli_(0.5) if self.training else x

        model = Norms()
        model.b = nn.Sequential(nn.Linear(6, 3), Drops())
        with self.raises(weft.ExportError, "call eval() on those modules"):
            self.export(model)
        model.b[1].eval()
        self.assert_warns(model)

    def test_a_running_estimate(self):
        class Centres(Norms):
            def __init__(self):
                super().__init__()
                self.register_buffer("centre", torch.zeros(4))

            def forward(self, x):
                y = super().forward(x - self.centre)
                self.centre.copy_(0.9 * self.centre + 0.1 * x.detach().mean(0))
                return y
        model = Centres()
        self.assert_warns(model, "'centre' changes in each run")
        self.assertEqual(float(model.centre.abs().sum()), 0)
        self.assertEqual(float(abs(read_arrays(self.path)["centre"]).sum()), 0)

    def test_a_counter(self):
        class Counts(Norms):
            seen = 0

            def __init__(self):
                super().__init__()
                self.calls = 0

            def forward(self, x):
                self.calls += 1
                return super().forward(x) * self.calls
        model = Counts()
        self.assert_warns(model, "'calls' changes in each run")
        self.assertEqual(model.calls, 0)

    def test_a_gradient_that_is_cut(self):
        class Cut(Norms):
            def forward(self, x):
                return self.b(F.relu(self.norm(self.a(x))).detach())
        exported = self.assert_warns(Cut(), "a gradient is cut here (detach)", "is cut off from every output")
        self.assertRegex(exported.warnings[0], r"^test_export.py:\d+: ")
        self.assertEqual(exported.unreached, {"a.weight", "a.bias", "norm.weight", "norm.bias"})

    def test_data_of_a_tensor(self):
        class Cut(Norms):
            def forward(self, x):
                return self.b(F.relu(self.norm(self.a(x)).data))
        self.assert_warns(Cut(), "`.data` of a tensor is fixed to that of the example", "has no part in")

    def test_a_buffer_that_is_replaced(self):
        class Replaces(Norms):
            def __init__(self):
                super().__init__()
                self.register_buffer("last", torch.zeros(4))

            def forward(self, x):
                y = super().forward(x + self.last)
                self.last = x.detach().mean(0)
                return y
        model = Replaces()
        self.assert_warns(model, "'last' changes in each run")
        self.assertEqual(float(model.last.abs().sum()), 0)

    def test_no_grad(self):
        class Quiet(Norms):
            def forward(self, x):
                with torch.no_grad():
                    x = self.a(x)
                return self.b(self.norm(x))
        exported = self.assert_warns(Quiet(), "computes under no_grad", "is cut off")
        self.assertEqual(exported.unreached, {"a.weight", "a.bias"})

    def test_control_flow_on_values(self):
        class Branches(Norms):
            def forward(self, x):
                if x.sum() > 0:
                    x = x * 2
                return super().forward(x)
        exported = self.assert_warns(Branches(), "to a Python boolean")
        self.assertIn("torch.where", exported.warnings[0])

    def test_a_parameter_without_a_part(self):
        model = Norms()
        model.spare = nn.Parameter(torch.ones(2))
        self.assert_warns(model, "'spare' has no part in what forward computes")

    def test_half_precision_and_double(self):
        self.assert_warns(nn.Linear(4, 2).bfloat16(), "stored in 16 bits", example=torch.ones(2, 4).bfloat16())
        self.assert_warns(nn.Linear(4, 2).double(), "in float64", example=torch.ones(2, 4).double())

    def test_a_momentum_that_is_not_fixed(self):
        model = Norms()
        model.norm.momentum = None
        self.assertIn("momentum=None", " ".join(self.export(model).warnings))

    def test_gradients_of_its_own(self):
        class Straight(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                return x.round()

            @staticmethod
            def backward(ctx, g):
                return g

        class Rounds(Norms):
            def forward(self, x):
                return Straight.apply(super().forward(x))
        self.assert_warns(Rounds(), "computes under no_grad", "gradients of its own ('Straight'")

    def test_tied_weights_are_no_loss(self):
        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
        model[1].weight = model[0].weight
        self.assert_warns(model)
        self.assertEqual(len([i for i in read_initializers(self.path) if i.name.endswith("weight")]), 1)
        with torch.no_grad():
            model[0].weight.zero_()
        load_state(self.path, model)
        self.assertNotEqual(float(model[1].weight.abs().sum()), 0)
        self.assertIs(model[1].weight, model[0].weight)


class Loading(Case):
    def test_another_model_is_refused_and_nothing_changes(self):
        path = self.file("model.onnx")
        export_model(Norms(), torch.ones(2, 4), path)
        other = nn.Sequential(nn.Linear(3, 3))
        with self.raises(weft.InvalidArgument, "none of the model's parameters"):
            load_state(path, other)
        wide = Norms()
        wide.b = nn.Linear(6, 4)
        before = wide.a.weight.clone()
        with self.raises(weft.InvalidArgument, "'b.weight' is [3, 6]"):
            load_state(path, wide)
        self.assertTrue(torch.equal(wide.a.weight, before))
        less = nn.Sequential()
        less.a = nn.Linear(4, 6)
        with self.raises(weft.InvalidArgument, "that the model lacks, as 'norm."):
            load_state(path, less)
        self.assertEqual(load_state(path, less, strict=False), ["a.weight", "a.bias"])

    def test_damage_is_no_crash(self):
        path = self.file("model.onnx")
        export_model(Norms(), torch.ones(2, 4), path)
        with open(path, "rb") as file:
            whole = file.read()
        seed = int(os.environ.get("WEFT_FUZZ_SEED", "7"))
        draw = random.Random(seed)
        refused = 0
        for _ in range(300):
            damaged = bytearray(whole[:draw.randrange(len(whole))] if draw.random() < 0.3 else whole)
            for _ in range(draw.randrange(1, 8)):
                if damaged:
                    damaged[draw.randrange(len(damaged))] = draw.randrange(256)
            with open(path, "wb") as file:
                file.write(damaged)
            try:
                read_arrays(path)
            except weft.Error:
                refused += 1
        self.assertGreater(refused, 100, f"seed {seed}")

    def test_data_outside_of_the_file(self):
        import onnx
        path = self.file("model.onnx")
        model = Norms()
        export_model(model, torch.ones(2, 4), path)
        proto = onnx.load(path)
        onnx.save_model(proto, path, save_as_external_data=True, location="model.data", size_threshold=0)
        for name, array in read_arrays(path).items():
            np.testing.assert_array_equal(array, named_state(model)[name].detach().numpy())
        for entry in proto.graph.initializer[0].external_data:
            if entry.key == "location":
                entry.value = "../model.data"
        with open(path, "wb") as file:
            file.write(proto.SerializeToString())
        with self.raises(weft.Corrupted, "outside its folder"):
            read_arrays(path)

    def test_each_type_as_onnx_reads_it(self):
        import onnx
        from onnx import helper, numpy_helper
        tensors = [numpy_helper.from_array(np.array([[1, -2], [3, 4]], dtype), np.dtype(dtype).name)
                   for dtype in (np.float32, np.float64, np.float16, np.int8, np.int16, np.int32, np.int64)]
        tensors += [helper.make_tensor("typed_" + onnx.TensorProto.DataType.Name(kind), kind, [3], values)
                    for kind, values in ((1, [1.5, -2, 3]), (11, [1.5, -2, 3]), (10, [1.5, -2, 3]), (6, [1, -2, 3]),
                                         (7, [1, -2, 1 << 40]), (9, [True, False, True]), (3, [1, -2, 3]))]
        graph = helper.make_graph([], "g", [], [], tensors)
        path = self.file("types.onnx")
        onnx.save(helper.make_model(graph), path)
        arrays = read_arrays(path)
        self.assertEqual(len(arrays), len(tensors))
        for tensor in tensors:
            expected = numpy_helper.to_array(tensor)
            np.testing.assert_array_equal(arrays[tensor.name], expected)
            self.assertEqual(arrays[tensor.name].dtype, expected.dtype)


class TorchTerms(Case):
    def test_loss_modules_and_functions(self):
        self.assertEqual(terms.loss_fields(nn.CrossEntropyLoss()), [{"type": "cross_entropy"}])
        self.assertEqual(
            terms.loss_fields(nn.CrossEntropyLoss(torch.tensor([1.0, 2.5]), ignore_index=0, label_smoothing=0.1)),
            [{"type": "cross_entropy", "class_weights": [1.0, 2.5], "label_smoothing": 0.1, "ignore_index": 0}])
        self.assertEqual(terms.loss_fields([nn.MSELoss(), F.l1_loss, nn.BCEWithLogitsLoss()]),
                         [{"type": "mse"}, {"type": "l1"}, {"type": "bce_with_logits"}])
        for loss, text in ((nn.CrossEntropyLoss(reduction="sum"), "reduction='sum'"), (nn.NLLLoss(), "without log_softmax"),
                           (nn.BCELoss(), "without sigmoid"), (nn.HuberLoss(), "no loss HuberLoss"),
                           (nn.BCEWithLogitsLoss(pos_weight=torch.ones(2)), "pos_weight"), (F.nll_loss, "without log_softmax")):
            with self.raises(weft.Unsupported, text):
                terms.loss_fields(loss)

    def test_optimizers(self):
        model = Norms()
        sgd = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=1e-4)
        self.assertEqual(terms.optimizer_terms(sgd, None, model).fields, {
            "type": "sgd", "learning_rate": 0.1, "weight_decay": 1e-4, "momentum": 0.9, "nesterov": True})
        adam = torch.optim.AdamW(model.parameters())
        self.assertEqual(terms.optimizer_terms(adam, None, model).fields, {
            "type": "adamw", "learning_rate": 1e-3, "weight_decay": 0.01, "betas": [0.9, 0.999], "epsilon": 1e-8})

    def test_parameter_groups(self):
        model = Norms()
        groups = [{"params": [model.a.bias], "weight_decay": 0}, {"params": [model.a.weight, model.norm.weight]},
                  {"params": model.b.parameters(), "lr": 0.05}]
        found = terms.optimizer_terms(torch.optim.Adam(groups, lr=0.1, weight_decay=0.01), None, model)
        self.assertEqual(found.fields["groups"], [
            {"parameters": ["a.bias"], "learning_rate_factor": 1.0, "weight_decay": 0.0},
            {"parameters": ["b.weight", "b.bias"], "learning_rate_factor": 0.5, "weight_decay": 0.01}])
        self.assertEqual(found.left_out, ["norm.bias"])

    def test_what_a_job_cannot_say(self):
        model = Norms()
        with self.raises(weft.Unsupported, "no optimizer RMSprop"):
            terms.optimizer_terms(torch.optim.RMSprop(model.parameters()), None, model)
        with self.raises(weft.Unsupported, "amsgrad=True"):
            terms.optimizer_terms(torch.optim.Adam(model.parameters(), amsgrad=True), None, model)
        with self.raises(weft.Unsupported, "they differ in momentum"):
            terms.optimizer_terms(torch.optim.SGD([{"params": model.a.parameters(), "momentum": 0.5},
                                                   {"params": model.b.parameters()}], lr=0.1), None, model)
        with self.raises(weft.InvalidArgument, "not parameters of the model"):
            terms.optimizer_terms(torch.optim.SGD(Norms().parameters(), lr=0.1), None, model)
        with self.raises(weft.InvalidArgument, "leave learning_rate out"):
            terms.optimizer_terms(torch.optim.SGD(model.parameters(), lr=0.1), 0.1, model)
        optimizer = torch.optim.Adam(model.parameters())
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        self.assertIn("made steps already", terms.optimizer_terms(optimizer, None, model).warnings[0])
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3)
        with self.raises(weft.Unsupported, "cannot say StepLR"):
            terms.schedule_fields(scheduler)


class Pairs(torch.utils.data.Dataset):
    def __len__(self):
        return 5

    def __getitem__(self, i):
        return (torch.full((2, 3), float(i)), [i, -i]), i


class Stream(torch.utils.data.IterableDataset):
    def __iter__(self):
        return iter([(np.float64(i), np.full(2, i, np.uint8)) for i in range(4)])


class Data(Case):
    def written(self, data, columns):
        said = dataset.write_columns(dataset.Samples(data), columns, self.folder, "train")
        self.assertEqual(said, {"type": "npy", "arrays": {name: f"train.{name}.npy" for name in columns}})
        return {name: np.load(self.file(f"train.{name}.npy")) for name in columns}

    def test_tuples_that_are_nested(self):
        arrays = self.written(Pairs(), ["x", "pair", "label"])
        np.testing.assert_array_equal(arrays["x"], np.repeat(np.arange(5, dtype=np.float32), 6).reshape(5, 2, 3))
        np.testing.assert_array_equal(arrays["pair"], [[i, -i] for i in range(5)])
        np.testing.assert_array_equal(arrays["label"], np.arange(5))
        self.assertEqual([arrays[n].dtype for n in ("x", "pair", "label")], [np.float32, np.int64, np.int64])

    def test_a_stream_of_unknown_length(self):
        arrays = self.written(Stream(), ["y", "x"])
        np.testing.assert_array_equal(arrays["y"], np.arange(4, dtype=np.float32))
        self.assertEqual((arrays["x"].dtype, arrays["x"].shape), (np.uint8, (4, 2)))

    def test_mappings_of_samples_and_of_arrays(self):
        rows = [{"a": torch.tensor(i).bfloat16(), "b": i % 2 == 0, "unused": "text"} for i in range(3)]
        arrays = self.written(rows, ["b", "a"])
        np.testing.assert_array_equal(arrays["a"], np.arange(3, dtype=np.float32))
        self.assertEqual(arrays["b"].dtype, np.bool_)
        arrays = self.written({"a": np.arange(6).reshape(3, 2), "b": torch.ones(3)}, ["a", "b"])
        np.testing.assert_array_equal(arrays["a"], [[0, 1], [2, 3], [4, 5]])

    def test_a_type_that_holds_the_others(self):
        arrays = self.written([(np.int32(1),), (np.int8(2),)], ["x"])
        self.assertEqual(arrays["x"].tolist(), [1, 2])

    def test_weft_reads_what_is_written(self):
        said = dataset.write_columns(dataset.Samples(Pairs()), ["x", "pair", "label"], self.folder, "train")
        said["arrays"] = {name: self.file(path) for name, path in said["arrays"].items()}
        np.savez(self.file("train.npz"), **{name: np.load(path) for name, path in said["arrays"].items()})
        model = nn.Sequential(nn.Flatten(), nn.Linear(6, 5))
        trained = []
        for data in (said, self.file("train.npz")):
            with weft.local(model, data, example=torch.ones(2, 2, 3), inputs={"input": "x"}, batch_size=5, steps=2,
                            loss={"type": "cross_entropy", "labels": "label"}) as run:
                trained.append(run.weights())
        for name in trained[0]:
            np.testing.assert_array_equal(trained[0][name], trained[1][name])

    def test_what_is_refused_names_the_sample(self):
        from PIL import Image
        for data, columns, text in (
                ([(torch.ones(2), 1), (torch.ones(3), 1)], ["x", "y"], "'x' of sample 1 has the shape [3]"),
                ([(torch.ones(2), 1), (torch.ones(2), 1.5)], ["x", "y"], "'y' of sample 1 holds float32"),
                ([(Image.new("L", (2, 2)), 1)], ["x", "y"], "is a PIL image: give the data set a transform"),
                ([(torch.ones(2), "cat")], ["x", "y"], "'y' of sample 0 is a str"),
                ([(torch.ones(2),)], ["x", "y"], "sample 0 of dataset has 1 values, and the model and its losses read 2"),
                ([{"x": 1}], ["x", "y"], "sample 0 of dataset has no 'y'"),
                ([(torch.ones(2, dtype=torch.complex64),)], ["x"], "holds complex64"),
                ([(torch.ones(2),)], ["a/b"], "cannot be the name of a column")):
            with self.raises(weft.InvalidArgument, text):
                self.written(data, columns)
            self.assertEqual([name for name in os.listdir(self.folder) if name.endswith(".npy")], [])

    def test_what_is_no_data_set(self):
        for data, text in ((torch.utils.data.DataLoader(Pairs()), "pass the Dataset"), ([], "no samples"), (3, "is a int"),
                           ({"a": np.ones(2), "b": np.ones(3)}, "different numbers"), ({"a": 3}, "'a' is a int")):
            with self.raises(weft.InvalidArgument, text):
                dataset.Samples(data)

    def test_an_error_leaves_nothing_behind(self):
        with self.raises(weft.InvalidArgument, "sample 3"):
            weft.local(nn.Linear(2, 1), [(torch.ones(2), torch.ones(1))] * 3 + [(torch.ones(2), torch.ones(2))], loss="mse",
                       batch_size=2, steps=1)
        self.assertEqual(self.left_behind(), [])


if __name__ == "__main__":
    unittest.main()

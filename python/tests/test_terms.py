"""What the data, losses, optimizers and columns become in a job file, and what is refused: without PyTorch."""

import unittest

from support import Case, weft
from weft import dataset, prepare, terms
from weft.export import OPSET, export_arguments


class Losses(Case):
    def test_names_mappings_and_lists(self):
        self.assertEqual(terms.loss_fields("mse"), [{"type": "mse"}])
        self.assertEqual(terms.loss_fields(["l1", {"type": "mse", "weight": 2}]),
                         [{"type": "l1"}, {"type": "mse", "weight": 2}])

    def test_what_there_is_not(self):
        for loss, text in ((None, "say what is minimised"), ("hinge", "no loss 'hinge'"), ({"type": "x"}, "not 'x'"),
                           ([], "is empty")):
            with self.raises(weft.InvalidArgument, text):
                terms.loss_fields(loss)

    def test_a_loss_of_another_kind_is_refused_by_name(self):
        class HuberLoss:
            reduction = "mean"

        def my_loss(a, b):
            return a - b
        with self.raises(weft.Unsupported, "no loss HuberLoss: compute it in forward"):
            terms.loss_fields(HuberLoss())
        with self.raises(weft.Unsupported, "no loss my_loss"):
            terms.loss_fields(my_loss)


class Optimizers(Case):
    def test_names_and_mappings(self):
        self.assertEqual(terms.optimizer_terms(None, None, None).fields, {"type": "adamw"})
        self.assertEqual(terms.optimizer_terms("sgd", 0.1, None).fields, {"type": "sgd", "learning_rate": 0.1})
        self.assertEqual(terms.optimizer_terms({"type": "adam", "betas": [0, 0.9]}, 1e-3, None).fields,
                         {"type": "adam", "betas": [0, 0.9], "learning_rate": 1e-3})

    def test_what_there_is_not(self):
        with self.raises(weft.InvalidArgument, "there is no 'lion'"):
            terms.optimizer_terms("lion", None, None)
        with self.raises(weft.InvalidArgument, "the learning rate is inf"):
            terms.optimizer_terms("sgd", float("inf"), None)
        with self.raises(weft.InvalidArgument, "not a int"):
            terms.optimizer_terms(3, None, None)

    def test_schedules(self):
        self.assertIsNone(terms.schedule_fields(None))
        self.assertEqual(terms.schedule_fields("cosine"), {"type": "cosine"})
        self.assertEqual(terms.schedule_fields({"type": "linear", "final": 0.1}), {"type": "linear", "final": 0.1})
        with self.raises(weft.InvalidArgument, "no 'step'"):
            terms.schedule_fields("step")

        class OneCycleLR:
            pass
        with self.raises(weft.Unsupported, "cannot say OneCycleLR"):
            terms.schedule_fields(OneCycleLR())

    def test_groups_without_what_is_not_trained(self):
        fields = {"type": "sgd", "groups": [{"parameters": ["a", "b"]}, {"parameters": ["c"]}, {"parameters": ["*.w"]}]}
        terms.keep_groups_of(fields, ["a", "x.w"])
        self.assertEqual(fields["groups"], [{"parameters": ["a"]}, {"parameters": ["*.w"]}])
        fields = {"type": "sgd", "groups": [{"parameters": ["c"]}]}
        terms.keep_groups_of(fields, ["a"])
        self.assertEqual(fields, {"type": "sgd"})


class Columns(Case):
    def match(self, names, outputs, losses, keys=None, inputs=None, kind=""):
        losses = terms.loss_fields(losses)
        inputs, columns = prepare.match_columns(names, outputs, losses, keys, inputs or {}, kind)
        return inputs, columns, losses

    def test_by_order(self):
        inputs, columns, losses = self.match(["x"], ["output"], "cross_entropy")
        self.assertEqual((inputs, columns), ({"x": "x"}, ["x", "label"]))
        self.assertEqual(losses, [{"type": "cross_entropy", "logits": "output", "labels": "label"}])

    def test_two_losses_by_order(self):
        _, columns, losses = self.match(["a", "b"], ["y", "z"], ["cross_entropy", "mse"])
        self.assertEqual(columns, ["a", "b", "label0", "target1"])
        self.assertEqual([loss.get("logits") or loss.get("output") for loss in losses], ["y", "z"])

    def test_names_that_are_taken(self):
        _, columns, _ = self.match(["label"], ["y"], "cross_entropy")
        self.assertEqual(columns, ["label", "label_"])

    def test_by_name(self):
        inputs, columns, losses = self.match(["image"], ["y"], "mse", ["id", "image", "target"])
        self.assertEqual((inputs, columns, losses[0]["target"]), ({"image": "image"}, ["image", "target"], "target"))
        inputs, columns, _ = self.match(["x"], ["y"], "cross_entropy", ["pixels", "kind"])
        self.assertEqual((inputs, columns), ({"x": "pixels"}, ["pixels", "kind"]))
        inputs, columns, _ = self.match(["x"], ["y"], {"type": "cross_entropy", "labels": "kind"},
                                     ["kind", "pixels", "id"], {"x": "pixels"})
        self.assertEqual((inputs, columns), ({"x": "pixels"}, ["pixels", "kind"]))

    def test_weights_are_read(self):
        _, columns, _ = self.match(["x"], ["y"], {"type": "mse", "sample_weights": "w"}, ["x", "w", "t"])
        self.assertEqual(columns, ["x", "t", "w"])

    def test_a_loss_of_the_model_has_no_target(self):
        _, columns, losses = self.match(["x", "y"], ["loss"], "output")
        self.assertEqual((columns, losses), (["x", "y"], [{"type": "output", "name": "loss"}]))

    def test_what_is_open_is_asked(self):
        with self.raises(weft.InvalidArgument, "which column does loss 0 compare with?"):
            self.match(["x"], ["y"], "mse", ["x", "a", "b"])
        with self.raises(weft.InvalidArgument, "none beside the inputs"):
            self.match(["x"], ["y"], "mse", ["x"])
        with self.raises(weft.InvalidArgument, "the data have no 'x'"):
            self.match(["x"], ["y"], "mse", ["a", "b", "c"])
        with self.raises(weft.InvalidArgument, "there are 2 losses, and the model returns 1"):
            self.match(["x"], ["y"], ["mse", "l1"])
        with self.raises(weft.InvalidArgument, "inputs speaks of 'z'"):
            self.match(["x"], ["y"], "mse", ["x"], {"z": "x"})

    def test_files_whose_type_tells(self):
        self.assertEqual(dataset.columns_in_files({"type": "text"}), ["tokens", "targets"])
        inputs, columns, _ = self.match(["ids"], ["y"], "cross_entropy", ["tokens", "targets"], None, "text")
        self.assertEqual((inputs, columns), ({"ids": "tokens"}, ["tokens", "targets"]))


class Jobs(Case):
    def test_how_long(self):
        for given, text in (({}, "say batch_size"), ({"batch_size": 4}, "steps, or epochs"),
                            ({"batch_size": 4, "steps": 1, "epochs": 1}, "steps, or epochs")):
            with self.raises(weft.InvalidArgument, text):
                weft.local(self.file("m.onnx"), {"type": "npz", "path": __file__}, loss="mse", **given)

    def test_a_number_that_json_lacks(self):
        with self.raises(weft.InvalidArgument, "cannot hold this"):
            prepare.to_json({"a": float("nan")})
        with self.raises(weft.InvalidArgument, "cannot hold a object"):
            prepare.to_json(object())

    def test_more(self):
        job = {"placement": {"stages": 2}}
        prepare.put(job, "placement.owner", 0.5)
        prepare.put(job, "output", "x.onnx")
        self.assertEqual(job, {"placement": {"stages": 2, "owner": 0.5}, "output": "x.onnx"})
        with self.raises(weft.InvalidArgument, "'output' holds no keys"):
            prepare.put(job, "output.x", 1)


class Exporters(Case):
    """The arguments for torch.onnx.export, by the versions that there are."""

    AXES = {"x": {0: "batch"}, "y": {0: "batch"}}

    def arguments(self, export):
        return export_arguments(export, inputs=["x"], outputs=["y"], axes=self.AXES, training="PRESERVE")

    def test_the_old_one_of_1_13(self):
        def export(model, args, f, export_params=True, verbose=False, training=None, input_names=None,
                   output_names=None, operator_export_type=None, opset_version=None, do_constant_folding=True,
                   dynamic_axes=None, keep_initializers_as_inputs=None, custom_opsets=None,
                   export_modules_as_functions=False):
            pass
        self.assertEqual(self.arguments(export), {
            "input_names": ["x"], "output_names": ["y"], "opset_version": OPSET, "dynamic_axes": self.AXES,
            "do_constant_folding": False, "training": "PRESERVE"})

    def test_the_old_one_is_asked_for_where_there_are_both(self):
        def export(model, args=(), f=None, *, kwargs=None, export_params=True, verbose=None, input_names=None,
                   output_names=None, opset_version=None, dynamic_axes=None, keep_initializers_as_inputs=False,
                   dynamo=True, external_data=True, dynamic_shapes=None, optimize=True, training=None,
                   do_constant_folding=True, **more):
            pass
        arguments = self.arguments(export)
        self.assertIs(arguments["dynamo"], False)
        self.assertIs(arguments["do_constant_folding"], False)
        self.assertEqual((arguments["training"], arguments["dynamic_axes"]), ("PRESERVE", self.AXES))
        self.assertNotIn("dynamic_shapes", arguments)

    def test_the_new_one_alone(self):
        def export(model, args=(), f=None, *, input_names=None, output_names=None, opset_version=None,
                   external_data=True, dynamic_shapes=None, optimize=True):
            pass
        arguments = self.arguments(export)
        self.assertEqual(arguments, {
            "input_names": ["x"], "output_names": ["y"], "opset_version": OPSET, "optimize": False,
            "external_data": False, "dynamic_shapes": (({0: "batch"},),)})
        export(None, **arguments)


if __name__ == "__main__":
    unittest.main()
